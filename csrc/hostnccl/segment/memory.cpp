#include "hostnccl/segment/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

struct Allocations {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Allocation>> by_base;
};

Allocations& allocations() {
  static Allocations& instance = *new Allocations;
  return instance;
}

size_t whole_pages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - page) {
    fail(abi::ncclInvalidArgument, "size=%zu exceeds the address space", bytes);
  }
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

Allocation::Allocation(size_t bytes)
    : file_(make_memory_file("ncclMemAlloc", whole_pages(bytes))),
      mapping_(file_.get(), 0, whole_pages(bytes)) {}

void* allocate_memory(size_t bytes) {
  auto allocation = std::make_shared<Allocation>(bytes);
  char* base = allocation->base();
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.by_base[reinterpret_cast<uintptr_t>(base)] = std::move(allocation);
  return base;
}

void free_memory(void* memory) {
  std::shared_ptr<Allocation> freed;  // unmapped after the lock is released
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_base.find(reinterpret_cast<uintptr_t>(memory));
  if (found == all.by_base.end()) {
    fail(abi::ncclInvalidArgument, "ptr=%p was not allocated by ncclMemAlloc, or is freed already",
         memory);
  }
  freed = std::move(found->second);
  all.by_base.erase(found);
}

std::shared_ptr<Allocation> find_allocation(const void* address, size_t bytes) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  auto next = all.by_base.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (next == all.by_base.begin()) return nullptr;
  const std::shared_ptr<Allocation>& candidate = std::prev(next)->second;
  return candidate->contains(address, bytes) ? candidate : nullptr;
}

}  // namespace hostnccl
