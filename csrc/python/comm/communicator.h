// The class Communicator for the files that add methods to it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

using CommunicatorClass = py::class_<Communicator, std::shared_ptr<Communicator>>;

}  // namespace pynccl::python
