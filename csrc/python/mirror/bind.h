// The functions that bind the classes of the mirror, in the order of their dependencies.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python::mirror {

namespace py = pybind11;

void bind_hooks(py::module_& m);
void bind_comm_stream(py::module_& m);
void bind_work(py::module_& m);
void bind_process_group(py::module_& m);
void bind_fast_function(py::module_& m);
void bind_p2p_op(py::module_& m);

inline void bind(py::module_& m) {
  bind_hooks(m);
  bind_comm_stream(m);
  bind_work(m);
  bind_process_group(m);
  bind_fast_function(m);
  bind_p2p_op(m);
}

}  // namespace pynccl::python::mirror
