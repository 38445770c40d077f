// Interruption of waits by the program that called the library, such as Ctrl-C in Python.
#pragma once

#include <optional>

#include "hostnccl/base/error.h"

namespace hostnccl {

// Waiting threads call the check between two sleeps and when a signal ends one. A result other than
// 0 ends the wait. Null disables the check.
void set_interrupt_check(int (*check)());

// Whether this thread is interrupted, and the error if it is, as the predicate of its rank's name.
bool interrupted();
std::optional<Error> interruption();
void check_interrupt();  // throws if it is

inline constexpr char kInterruption[] = "was interrupted by a signal while it waited";

}  // namespace hostnccl
