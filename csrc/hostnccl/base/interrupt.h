// Interruption of waits by the program that calls the library: Ctrl-C in Python.
#pragma once

#include <optional>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"

namespace hostnccl {

// The check is called in waiting threads, between two sleeps and when a signal ends one. The wait
// ends if it returns a value other than 0. Null disables the check.
void set_interrupt_check(int (*check)());

// Whether the check ends the wait of this thread, and the error if it does, as a predicate of its
// rank.
bool interrupted();
std::optional<Error> interruption();
void check_interrupt();  // throws if it does

// Sleeps until the condition is met, with the check.
void sleep_until_interrupted(const WaitCondition& condition);

}  // namespace hostnccl
