// Memory that other processes can map: memory files, allocations of ncclMemAlloc, and the memory of
// all ranks in a window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "hostnccl/base/fd.h"

namespace hostnccl {

// A memory file (memfd) of zeros. It has no name in the file system; name is for /proc/PID/maps.
// The kernel frees it with its last descriptor and mapping, however the processes end.
Fd make_memory_file(const char* name, size_t bytes);

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

// An allocation of ncclMemAlloc: whole zeroed pages in a memory file. It holds one file descriptor
// until it is freed.
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

// The allocation that contains the whole range, or null. A window's reference keeps freed memory
// mapped: another rank of this process may still write to it.
std::shared_ptr<Allocation> find_allocation(const void* address, size_t bytes);

// The memory of all ranks in a window at equal distances, as NCCL maps it for kernels: that of rank
// r begins r * stride_4g() * 4 GiB after that of rank 0.
class FlatMemory {
 public:
  FlatMemory() = default;
  // Reserves addresses for windows of at most most_bytes that begin at this offset in their memory
  // files. Throws.
  FlatMemory(int nranks, size_t most_bytes, size_t offset);
  FlatMemory(FlatMemory&& other) noexcept { *this = std::move(other); }
  FlatMemory& operator=(FlatMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(reserved_, other.reserved_);
    std::swap(stride_4g_, other.stride_4g_);
    std::swap(within_page_, other.within_page_);
    return *this;
  }
  ~FlatMemory();

  void map(int rank, int file, size_t offset, size_t bytes);  // throws

  char* address(int rank) const { return page_of(rank) + within_page_; }
  uint32_t stride_4g() const { return stride_4g_; }

  // Leaves the memory mapped until the process ends, because kernels may still use it.
  void abandon() { base_ = nullptr; }

 private:
  char* page_of(int rank) const {
    return base_ + (size_t{stride_4g_} << 32) * static_cast<size_t>(rank);
  }

  char* base_ = nullptr;
  size_t reserved_ = 0;
  uint32_t stride_4g_ = 0;
  size_t within_page_ = 0;
};

}  // namespace hostnccl
