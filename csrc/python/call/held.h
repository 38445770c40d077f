// Python objects that outlive a call, kept by code that does not hold the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "core/library.h"

namespace pynccl::python {

namespace py = pybind11;

// Whoever lets go of the last reference need not hold the GIL; whoever calls these must.
std::shared_ptr<void> hold(py::object object);
std::shared_ptr<void> hold(std::vector<py::object> objects);

// Keeps objects (null: nothing) as long as the graph that the stream is captured into by capture(),
// if it is.
void hold_in_capture(const Library& library, CUstream stream,
                     std::initializer_list<PyObject*> objects);

}  // namespace pynccl::python
