// The stores of communicators, Communicator(store=...), through which ranks ask each other for
// their state. The exchange is implemented in pynccl._internal.inquiry.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

// Converts the store argument; nullptr for None. Throws TypeError if the object lacks a method.
std::shared_ptr<void> store_from_python(const py::object& store);

// Applies PYNCCL_CHECK to options with a store and without a check. Throws ValueError for a check
// without a store.
Communicator::Options with_comparison(Communicator::Options options);

// Enables inquiries into missing ranks for a new communicator with a store or NCCL's RAS service.
// Through the store, its other ranks can also ask about it. Requires the GIL.
void watch_missing_ranks(const std::shared_ptr<Communicator>& communicator);

}  // namespace pynccl::python
