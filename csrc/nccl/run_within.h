// run_within(): calls a function that may not return in time, for example an NCCL call that waits
// for other ranks.
#pragma once

#include <functional>

namespace pynccl {

// Calls function on a new thread, which has no current device, and waits for at most the given
// seconds. Returns true if the function has returned, or rethrows its exception. Returns false if
// it takes longer, or a signal handler ended the wait of the main thread (Interrupt). The function
// then continues, and late is called on its thread afterwards, even if it throws.
bool run_within(double seconds, std::function<void()> function, std::function<void()> late = {});

}  // namespace pynccl
