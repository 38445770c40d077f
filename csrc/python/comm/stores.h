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

// Lets the other ranks of a new communicator ask about it through its store, if it has one.
// Requires the GIL.
void watch_store(const std::shared_ptr<Communicator>& communicator);

}  // namespace pynccl::python
