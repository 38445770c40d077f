// The stores through which the ranks of communicators ask each other what they do:
// Communicator(store=...). pynccl._internal.inquiry has the exchange.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

// The store argument, as a communicator keeps it; nullptr for None. Throws TypeError for an object
// that lacks a method.
std::shared_ptr<void> store_from_python(const py::object& store);

// With PYNCCL_CHECK where they have a store and no check. Throws ValueError for a check without a
// store.
Communicator::Options with_comparison(Communicator::Options options);

// Has the other ranks of a communicator that is made ask for it through its store, if it has one.
// Needs the GIL.
void watch_store(const std::shared_ptr<Communicator>& communicator);

}  // namespace pynccl::python
