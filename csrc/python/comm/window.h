// Registers memory as a window that is owned by Python.
#pragma once

#include <memory>

#include "comm/window.h"

namespace pynccl::python {

// Registers the memory now, or at the end of the open group. Releases the GIL. A window that is
// deleted without close() stays registered, with a ResourceWarning.
std::shared_ptr<Window> register_memory(std::shared_ptr<Communicator> communicator, void* address,
                                        std::size_t nbytes, int flags,
                                        std::shared_ptr<void> memory);

}  // namespace pynccl::python
