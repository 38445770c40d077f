// What the files share that add methods to the class Communicator.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/communicator.h"
#include "comm/window.h"

namespace pynccl::python {

namespace py = pybind11;

using CommunicatorClass = py::class_<Communicator, std::shared_ptr<Communicator>>;

// Converts the store argument, through which ranks ask each other for their state; nullptr for
// None. Throws TypeError if the object lacks a method.
std::shared_ptr<void> store_from_python(const py::object& store);

// Applies PYNCCL_CHECK to options with a store and without a check. Throws ValueError for a check
// without a store.
Communicator::Options with_comparison(Communicator::Options options);

// Enables inquiries into missing ranks for a new communicator with a store or NCCL's RAS service.
// Through the store, its other ranks can also ask about it. Requires the GIL.
void watch_missing_ranks(const std::shared_ptr<Communicator>& communicator);

// Registers memory as a window now, or at the end of the open group. Releases the GIL. A window
// that is deleted without close() stays registered, with a ResourceWarning.
std::shared_ptr<Window> register_memory(std::shared_ptr<Communicator> communicator, void* address,
                                        std::size_t nbytes, int flags,
                                        std::shared_ptr<void> memory);

}  // namespace pynccl::python
