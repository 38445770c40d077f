#include "core/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace pynccl {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

void heavy_barrier() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  if (registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // No such call (a sandbox): by then every store of other threads is visible.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace pynccl
