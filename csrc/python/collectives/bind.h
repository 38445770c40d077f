// The operations as methods of Communicator. Each builds a checked Operation from its arguments and
// issues it or adds it to the thread's group.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

namespace py = pybind11;

void bind_barrier(py::module_& m);
void bind_collectives(py::module_& m);
void bind_one_sided(py::module_& m);

}  // namespace pynccl::python
