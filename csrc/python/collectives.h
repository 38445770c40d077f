// The collectives and point-to-point calls as methods of Communicator: arguments to a checked
// Operation, and that to NCCL or to the group of the thread.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

void add_collectives(const pybind11::handle& communicator_type);

}  // namespace pynccl::python
