// Interruption of waits by the program that called the library, such as Ctrl-C in Python.
#pragma once

#include <atomic>
#include <optional>

#include "hostnccl/base/error.h"

namespace hostnccl {

// Waiting threads call the check between two sleeps and when a signal ends one. A result other than
// 0 ends the wait. Null disables the check.
inline std::atomic<int (*)()> interrupt_check = nullptr;

inline constexpr char kInterruption[] = "was interrupted by a signal while it waited";

// Whether this thread is interrupted, and the error if it is, as the predicate of its rank's name.
inline bool interrupted() {
  int (*const check)() = interrupt_check.load();
  return check != nullptr && check() != 0;
}
inline std::optional<Error> interruption() {
  if (!interrupted()) return std::nullopt;
  return Error(abi::ncclRemoteError, kInterruption);
}
inline void check_interrupt() {  // throws if it is
  if (const auto reason = interruption())
    throw Error(reason->code(), "this rank " + reason->text());
}

}  // namespace hostnccl
