#include "hostnccl/segment/flat_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

size_t offset_in_page(size_t offset) { return offset % static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

FlatMemory::FlatMemory(int nranks, size_t most_bytes, size_t offset)
    : within_page_(offset_in_page(offset)) {
  stride_4g_ = static_cast<uint32_t>(((within_page_ + most_bytes - 1) >> 32) + 1);
  reserved_ = (size_t{stride_4g_} << 32) * static_cast<size_t>(nranks);
  void* reserved =
      mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    fail_errno("reserving %zu GiB of addresses for a window of %d ranks", reserved_ >> 30, nranks);
  }
  base_ = static_cast<char*>(reserved);
}

FlatMemory::~FlatMemory() {
  if (base_ != nullptr) munmap(base_, reserved_);
}

void FlatMemory::map(int rank, int file, size_t offset, size_t bytes) {
  if (offset_in_page(offset) != within_page_) {
    fail(abi::ncclInvalidUsage,
         "the windows of the ranks begin at different places of a page: kernels could not find "
         "them");
  }
  void* mapped = mmap(page_of(rank), within_page_ + bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset - within_page_));
  if (mapped == MAP_FAILED) fail_errno("mmap of %zu bytes of shared memory", bytes);
}

}  // namespace hostnccl
