#include "hostnccl/segment/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

#include "hostnccl/base/error.h"
#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

struct Allocations {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Allocation>> by_base;
};

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t whole_pages(size_t bytes) {
  const size_t page = page_bytes();
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - page) {
    fail(abi::ncclInvalidArgument, "size=%zu exceeds the address space", bytes);
  }
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

size_t offset_in_page(size_t offset) { return offset % page_bytes(); }

}  // namespace

Fd make_memory_file(const char* name, size_t bytes) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, which older kernels do not have
  Fd file(memfd_create(name, MFD_CLOEXEC | kNoExecSeal));
  if (!file && errno == EINVAL) file = Fd(memfd_create(name, MFD_CLOEXEC));
  if (!file) fail_errno("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    fail_errno("sizing shared memory to %zu bytes", bytes);
  }
  return file;
}

Mapping::Mapping(int fd, size_t offset, size_t bytes) : bytes_(bytes) {
  // A memory file accepts any size. Reserving as much private memory first is the best test of
  // whether the kernel can supply it.
  void* reserved = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) fail_errno("mmap of %zu bytes", bytes);
  void* memory = mmap(reserved, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                      static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, bytes);
    errno = error;
    fail_errno("mmap of %zu bytes of shared memory", bytes);
  }
  memory_ = static_cast<char*>(memory);
}

Mapping::~Mapping() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

Allocation::Allocation(size_t bytes)
    : file_(make_memory_file("ncclMemAlloc", whole_pages(bytes))),
      mapping_(file_.get(), 0, whole_pages(bytes)) {}

void* allocate_memory(size_t bytes) {
  auto allocation = std::make_shared<Allocation>(bytes);
  char* base = allocation->base();
  auto& all = immortal<Allocations>();
  const std::lock_guard lock(all.mutex);
  all.by_base[reinterpret_cast<uintptr_t>(base)] = std::move(allocation);
  return base;
}

void free_memory(void* memory) {
  std::shared_ptr<Allocation> freed;  // unmapped when the lock has been released
  auto& all = immortal<Allocations>();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_base.find(reinterpret_cast<uintptr_t>(memory));
  if (found == all.by_base.end()) {
    fail(abi::ncclInvalidArgument, "ptr=%p was not allocated by ncclMemAlloc, or has been freed",
         memory);
  }
  freed = std::move(found->second);
  all.by_base.erase(found);
}

std::shared_ptr<Allocation> find_allocation(const void* address, size_t bytes) {
  auto& all = immortal<Allocations>();
  const std::lock_guard lock(all.mutex);
  auto next = all.by_base.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (next == all.by_base.begin()) return nullptr;
  const std::shared_ptr<Allocation>& candidate = std::prev(next)->second;
  return candidate->contains(address, bytes) ? candidate : nullptr;
}

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
         "the windows of the ranks begin at different offsets in a page: kernels could not "
         "address them");
  }
  void* mapped = mmap(page_of(rank), within_page_ + bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset - within_page_));
  if (mapped == MAP_FAILED) fail_errno("mmap of %zu bytes of shared memory", bytes);
}

}  // namespace hostnccl
