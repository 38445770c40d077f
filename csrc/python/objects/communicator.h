// The parts of the binding of Communicator, one file each.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

using CommunicatorClass = py::class_<Communicator, std::shared_ptr<Communicator>>;

void add_creation(CommunicatorClass& type);
void add_life(CommunicatorClass& type);
void bind_resolvers(py::module_& m);
void bind_memory_stats(py::module_& m);

}  // namespace pynccl::python
