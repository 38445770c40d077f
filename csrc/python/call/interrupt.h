// Ctrl-C while the main thread waits in a library: see nccl/interrupt.h.
#pragma once

namespace pynccl::python {

void bind_interrupt();

// Raises what a signal handler has raised during the wait of this thread; false if nothing.
bool raise_interrupt();

}  // namespace pynccl::python
