#include "hostnccl/base/interrupt.h"

#include <atomic>

namespace hostnccl {
namespace {

std::atomic<int (*)()> interrupt_check = nullptr;

}  // namespace

void set_interrupt_check(int (*check)()) { interrupt_check.store(check); }

bool interrupted() {
  int (*const check)() = interrupt_check.load();
  return check != nullptr && check() != 0;
}

std::optional<Error> interruption() {
  if (!interrupted()) return std::nullopt;
  return Error(abi::ncclRemoteError, kInterruption);
}

void check_interrupt() {
  if (const auto reason = interruption())
    throw Error(reason->code(), "this rank " + reason->text());
}

}  // namespace hostnccl
