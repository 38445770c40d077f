// Config: the configuration of a communicator, ncclConfig_t plus two time limits.
#pragma once

#include <optional>

#include "core/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct Config : Owned<ncclConfig_t> {
  std::optional<double> init_timeout;  // seconds
  std::optional<double> timeout;       // seconds
};

// The options of a communicator, from a Config or None. Throws TypeError for another object.
Communicator::Options options_from_python(const py::object& config, int device);

}  // namespace pynccl::python
