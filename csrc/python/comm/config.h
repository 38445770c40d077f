// Config: the configuration of a communicator, ncclConfig_t plus the settings of pynccl.
// CollConfig: the configuration of one collective.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct Config : Owned<ncclConfig_t> {
  std::optional<double> init_timeout;  // seconds
  std::optional<double> timeout;       // seconds
  std::optional<std::uint64_t> check;  // the number of collectives between comparisons
  std::shared_ptr<void> on_timeout;    // the Python object; null if it is not set
};

// Converts a Config or None. Throws TypeError for other objects.
Communicator::Options options_from_python(const py::object& config, int device);

// Converts "every", a number or None. Throws TypeError or ValueError for other objects.
std::optional<std::uint64_t> check_from_python(const py::object& value);

// Returns a time limit argument. Throws ValueError unless it is positive.
std::optional<double> checked_seconds(const char* argument, std::optional<double> seconds);

// Converts "raise", "abort" or a function. Throws TypeError or ValueError for other objects.
TimeoutPolicy policy_from_python(const py::object& value);

// Immutable, so that groups, plans and graphs can refer to it.
struct CollConfig : Owned<ncclCollConfig_t> {
  py::object launch_event = py::none();
  const Library* event_library = nullptr;  // set if launch_event is a pynccl Event
};

// Adds a CollConfig to an operation. An open group or plan keeps the object alive. Throws if the
// library does not support it yet or the event belongs to another library.
[[gnu::cold, gnu::noinline]] void configure(Operation& operation, const Communicator& communicator,
                                            PyObject* config);

}  // namespace pynccl::python
