// pynccl_torch_malloc and pynccl_torch_free: the C functions that
// torch.cuda.memory.CUDAPluggableAllocator looks up in this module by name. They have no context
// argument, so there is one arena for the process; set_torch_arena() sets it.
#include "comm/torch_allocator.h"

#include <sys/types.h>

#include <atomic>
#include <stdexcept>

namespace pynccl {
namespace {

std::atomic<Arena*> current_arena = nullptr;

}  // namespace

void set_torch_arena(Arena& arena) {
  Arena* expected = nullptr;
  // Memory must be freed by the arena that allocated it, so the arena can only be set once.
  if (!current_arena.compare_exchange_strong(expected, &arena) && expected != &arena)
    throw std::invalid_argument("library: torch's pools already use the memory of " +
                                expected->shared_library()->path());
}

}  // namespace pynccl

extern "C" {

// torch reports a null result as out of memory.
[[gnu::visibility("default")]] void* pynccl_torch_malloc(ssize_t bytes, int device, void*) {
  pynccl::Arena* arena = pynccl::current_arena.load(std::memory_order_acquire);
  if (!arena || bytes <= 0) return nullptr;
  try {
    return arena->allocate(static_cast<std::size_t>(bytes), device);
  } catch (...) {
    return nullptr;
  }
}

[[gnu::visibility("default")]] void pynccl_torch_free(void* data, ssize_t, int, void*) {
  pynccl::Arena* arena = pynccl::current_arena.load(std::memory_order_acquire);
  if (!arena || !data) return;
  try {
    arena->deallocate(data);
  } catch (...) {  // at the end of the process the driver may be unloaded
  }
}

}  // extern "C"
