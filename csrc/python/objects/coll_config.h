// The configuration of one collective as Python sees it: fixed once it is made, so that what was
// collected in a group, a plan or a graph stays what it was.
#pragma once

#include "core/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct CollConfig : Owned<ncclCollConfig_t> {
  py::object launch_event = py::none();
  const Library* event_library = nullptr;  // of an Event of ours
};

// Puts a CollConfig into an operation, and where a group or plan is open has that keep the object.
// Throws where the library is too old for it, or its event is another library's.
[[gnu::cold, gnu::noinline]] void configure(Operation& operation, const Communicator& communicator,
                                            PyObject* config);

}  // namespace pynccl::python
