// Config: the configuration of a communicator, ncclConfig_t plus what pynccl adds.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct Config : Owned<ncclConfig_t> {
  std::optional<double> init_timeout;  // seconds
  std::optional<double> timeout;       // seconds
  std::optional<std::uint64_t> check;  // every how many collectives
  std::shared_ptr<void> on_timeout;    // the Python object; none where it is not set
};

// The options of a communicator, from a Config or None. Throws TypeError for another object.
Communicator::Options options_from_python(const py::object& config, int device);

// "every", a number or None. Throws TypeError or ValueError for something else.
std::optional<std::uint64_t> check_from_python(const py::object& value);

// "raise", "abort" or a function. Throws TypeError or ValueError for something else.
TimeoutPolicy policy_from_python(const py::object& value);

}  // namespace pynccl::python
