// The functions that bind the raw layer, in the order in which module.cpp calls them.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace pynccl::python {

namespace py = pybind11;

void bind_enums(py::module_& m);
void bind_structs(py::module_& m);
void bind_device_structs(py::module_& m);
void bind_unique_id(py::module_& m);
void bind_library(py::module_& m);

}  // namespace pynccl::python
