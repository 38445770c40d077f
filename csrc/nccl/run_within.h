// run_within(): calls a function that may not return in time, such as a call of NCCL that waits for
// other ranks.
#pragma once

#include <functional>

namespace pynccl {

// Calls function on a thread of its own and waits for it for at most some seconds. True where it
// has returned; its exception is thrown here. False where it takes longer, or a handler of a signal
// has ended the wait of the main thread (Interrupt): it continues on its thread, and late is called
// there after it, whether it has thrown or not. The thread has no current device.
bool run_within(double seconds, std::function<void()> function, std::function<void()> late = {});

}  // namespace pynccl
