// The functions that bind the classes of pynccl.nccl.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

namespace pynccl::python {

namespace py = pybind11;

// Returns a time limit argument. Throws ValueError unless it is positive.
std::optional<double> checked_seconds(const char* argument, std::optional<double> seconds);

void bind_config(py::module_& m);
void bind_coll_config(py::module_& m);
void bind_red_op(py::module_& m);
void bind_stream(py::module_& m);
void bind_arena(py::module_& m);
void bind_buffer(py::module_& m);
void bind_communicator(py::module_& m);
void bind_borrow(py::module_& m);
void bind_deadlines(py::module_& m);
void bind_inquiry(py::module_& m);
void bind_flight_record(py::module_& m);
void bind_recovery(py::module_& m);
void bind_extension(py::module_& m);
void bind_window(py::module_& m);
void bind_native(py::module_& m);
void bind_device_team(py::module_& m);
void bind_device_properties(py::module_& m);
void bind_device_comm(py::module_& m);
void bind_symmetric(py::module_& m);
void bind_group(py::module_& m);
void bind_plan(py::module_& m);
void bind_simulation(py::module_& m);
void bind_graph(py::module_& m);
void bind_trace(py::module_& m);
void bind_checksum(py::module_& m);

}  // namespace pynccl::python
