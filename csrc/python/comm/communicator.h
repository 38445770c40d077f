// What the files share that add methods to the class Communicator, and Config.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/window.h"
#include "python/raw/structs.h"

namespace pynccl::python {

namespace py = pybind11;

using CommunicatorClass = py::class_<Communicator, std::shared_ptr<Communicator>>;

// Throws TypeError if an object lacks a method of a store. Calls none of them.
void check_store(const py::object& store);

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

// The configuration of a communicator: ncclConfig_t plus the settings of pynccl.
struct Config : Owned<ncclConfig_t> {
  Communicator::Options options;  // except for options.config
};

// Converts a Config or None. Throws TypeError for other objects.
Communicator::Options options_from_python(const py::object& config, int device);

// Converts "every", a number or None. Throws TypeError or ValueError for other objects.
std::optional<std::uint64_t> check_from_python(const py::object& value);

// Converts a time limit in seconds, or None. Throws TypeError, and ValueError unless it is
// positive.
std::optional<double> seconds_from_python(const char* argument, const py::object& value);

// Converts "raise", "abort" or a function. Throws TypeError or ValueError for other objects.
TimeoutPolicy policy_from_python(const py::object& value);
py::object policy_to_python(const TimeoutPolicy& policy);

// Adds a CollConfig, a Python object, to an operation. An open group or plan keeps it alive. Throws
// if the library does not support it yet or the event belongs to another library.
[[gnu::cold, gnu::noinline]] void configure(Operation& operation, const Communicator& communicator,
                                            PyObject* config);

}  // namespace pynccl::python
