// ncclMemAlloc's memory: whole pages, zeroed, in a memory file, so that windows over it can be
// mapped by other processes. Each allocation holds one descriptor for as long as it lives.
#pragma once

#include <cstddef>
#include <memory>

#include "hostnccl/base/memory_file.h"

namespace hostnccl {

class Allocation {
 public:
  explicit Allocation(size_t bytes);

  char* base() const { return mapping_.get(); }
  size_t bytes() const { return mapping_.bytes(); }
  int file() const { return file_.get(); }
  bool holds(const void* address, size_t size) const {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - base());
    return offset < bytes() && size <= bytes() - offset;
  }

 private:
  Fd file_;
  Mapping mapping_;
};

void* allocate_memory(size_t bytes);
void free_memory(void* memory);  // throws if it is not allocated

// The allocation that holds all of this memory, or none. Freed memory stays mapped while somebody
// has its allocation: a window of another rank in this process may still write to it.
std::shared_ptr<Allocation> find_allocation(const void* address, size_t bytes);

}  // namespace hostnccl
