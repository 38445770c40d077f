// Ctrl-C while the main thread waits in a library: see core/interrupt.h.
#pragma once

namespace pynccl::python {

void bind_interrupt();

// Raises what a signal handler has raised during the wait of this thread; false if nothing.
bool raise_interrupt();

}  // namespace pynccl::python
