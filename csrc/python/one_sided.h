// put_signal, signal and wait_signal as methods of Communicator: arguments to a checked Operation,
// and that to NCCL or to the group of the thread.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

void add_one_sided(const pybind11::handle& communicator_type);

}  // namespace pynccl::python
