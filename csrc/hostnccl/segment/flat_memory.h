// FlatMemory: the memory of all ranks in a window at equal distances, as NCCL maps it for kernels:
// that of rank r begins r * stride_4g() * 4 GiB after that of rank 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace hostnccl {

class FlatMemory {
 public:
  FlatMemory() = default;
  // Reserves addresses for windows of at most most_bytes, which begin at this offset in their
  // memory files. Throws.
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

  char* of_rank(int rank) const { return page_of(rank) + within_page_; }
  uint32_t stride_4g() const { return stride_4g_; }

  // The memory stays mapped until the process ends, because kernels may still use it.
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
