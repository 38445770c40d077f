// Memory files (memfd) and their mappings: memory that other processes can map. A memory file has
// no name in the file system. The kernel frees it with its last descriptor and mapping, however the
// processes end.
#pragma once

#include <cstddef>
#include <utility>

#include "hostnccl/base/fd.h"

namespace hostnccl {

Fd make_memory_file(const char* name, size_t bytes);  // zeros; name is for /proc/PID/maps

// An owned mapping.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, size_t offset, size_t bytes);  // shared; throws
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  char* get() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hostnccl
