// The two C functions that torch.cuda.memory.CUDAPluggableAllocator finds in this module by name.
// They have no context argument, so that there is one arena behind them, which
// set_torch_arena() chooses.
#include "core/torch_allocator.h"

#include <sys/types.h>

#include <atomic>
#include <stdexcept>

namespace pynccl {
namespace {

std::atomic<Arena*> current_arena = nullptr;

}  // namespace

void set_torch_arena(Arena& arena) {
  Arena* expected = nullptr;
  // Memory goes back to where it came from, so that the choice is made once.
  if (!current_arena.compare_exchange_strong(expected, &arena) && expected != &arena)
    throw std::invalid_argument("library: torch's pools already take their memory from " +
                                expected->shared_library()->path());
}

}  // namespace pynccl

extern "C" {

// Null is what torch takes for "out of memory".
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
  } catch (...) {  // the process ends, and the driver is gone already
  }
}

}  // extern "C"
