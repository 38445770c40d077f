#include "hostnccl/base/interrupt.h"

#include <atomic>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

std::atomic<int (*)()> interrupt_check = nullptr;

}  // namespace

void set_interrupt_check(int (*check)()) { interrupt_check.store(check); }

bool interrupted() {
  int (*const check)() = interrupt_check.load();
  return check != nullptr && check() != 0;
}

void check_interrupt() {
  if (interrupted()) fail(abi::ncclRemoteError, "interrupted by a signal while it waited");
}

void sleep_until_interrupted(const WaitCondition& condition) {
  constexpr auto kCheckInterval = std::chrono::milliseconds(100);
  while (!condition.met()) {
    sleep_on(condition, kCheckInterval);
    if (!condition.met()) check_interrupt();
  }
}

}  // namespace hostnccl
