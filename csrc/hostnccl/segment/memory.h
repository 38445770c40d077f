// Allocations of ncclMemAlloc: whole zeroed pages in a memory file, so that other processes can map
// windows over them. Each allocation holds one file descriptor until it is freed.
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
  bool contains(const void* address, size_t size) const {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - base());
    return offset < bytes() && size <= bytes() - offset;
  }

 private:
  Fd file_;
  Mapping mapping_;
};

void* allocate_memory(size_t bytes);
void free_memory(void* memory);  // throws unless it is the base of an allocation

// The allocation that contains the whole range, or null. Freed memory stays mapped while a window
// holds its allocation: another rank of this process may still write to it.
std::shared_ptr<Allocation> find_allocation(const void* address, size_t bytes);

}  // namespace hostnccl
