// CollConfig: the configuration of one collective. Immutable, so that groups, plans and graphs can
// refer to it.
#pragma once

#include "comm/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct CollConfig : Owned<ncclCollConfig_t> {
  py::object launch_event = py::none();
  const Library* event_library = nullptr;  // set if launch_event is a pynccl Event
};

// Adds a CollConfig to an operation. An open group or plan keeps the object alive. Throws if the
// library does not support it yet or the event belongs to another library.
[[gnu::cold, gnu::noinline]] void configure(Operation& operation, const Communicator& communicator,
                                            PyObject* config);

}  // namespace pynccl::python
