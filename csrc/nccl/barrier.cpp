#include "nccl/barrier.h"

#include <dirent.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "common/signals_blocked.h"

namespace pynccl {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

// A forked child inherits both the registration and this flag.
std::atomic<bool> registered = false;

void register_process() { registered.store(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)); }

bool is_single_threaded() {
  DIR* const tasks = opendir("/proc/self/task");
  if (!tasks) return false;
  int entries = 0;
  while (readdir(tasks)) ++entries;
  closedir(tasks);
  return entries == 3;  // with . and ..
}

}  // namespace

void prepare_heavy_barrier() noexcept {
  if (is_single_threaded()) return register_process();
  try {
    const common::SignalsBlocked blocked;  // inherited by the thread
    std::thread(register_process).detach();
  } catch (const std::system_error&) {  // no thread: every barrier takes the slow path
  }
}

void heavy_barrier() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (registered.load() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // membarrier is unavailable (a sandbox) or not registered yet: after this pause every store of
  // other threads is visible.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace pynccl
