// The configuration of one collective as Python sees it: fixed once it is made, so that what was
// collected in a group, a plan or a graph stays what it was.
#pragma once

#include "core/communicator.h"
#include "python/structs.h"

namespace pynccl::python {

struct CollConfig : Owned<ncclCollConfig_t> {
  py::object launch_event = py::none();
  const Library* event_library = nullptr;  // of an Event of ours
};

// Puts a CollConfig into an operation. Throws where its library is too old for it, or its event is
// another library's. Whoever keeps the operation keeps the object.
[[gnu::cold, gnu::noinline]] void configure(Operation& operation, const Communicator& communicator,
                                            PyObject* config);

}  // namespace pynccl::python
