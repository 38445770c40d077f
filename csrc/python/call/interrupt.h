// Ctrl-C while the main thread waits in a library: see nccl/interrupt.h.
#pragma once

namespace pynccl::python {

void bind_interrupt();

// Raises the exception that a signal handler raised while this thread was waiting. Returns false if
// there is none.
bool raise_interrupt();

}  // namespace pynccl::python
