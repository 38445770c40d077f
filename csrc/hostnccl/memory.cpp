#include "hostnccl/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "hostnccl/error.h"

namespace hostnccl {
namespace {

struct Allocations {
  std::mutex mutex;
  std::map<void*, size_t> sizes;
};

Allocations& allocations() {
  static Allocations& instance = *new Allocations;
  return instance;
}

}  // namespace

void* allocate_memory(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - page) {
    fail(abi::ncclInvalidArgument, "size=%zu is more than memory can hold", bytes);
  }
  const size_t whole = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_errno("ncclMemAlloc of %zu bytes", bytes);
  all.sizes[memory] = whole;
  return memory;
}

void free_memory(void* memory) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.sizes.find(memory);
  if (found == all.sizes.end()) {
    fail(abi::ncclInvalidArgument, "ptr=%p was not allocated by ncclMemAlloc, or is freed already",
         memory);
  }
  munmap(memory, found->second);
  all.sizes.erase(found);
}

}  // namespace hostnccl
