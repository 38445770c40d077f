// A communicator's configuration as Python sees it: NCCL's own, and the deadline that we add.
#pragma once

#include <optional>

#include "core/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {

struct Config : Owned<ncclConfig_t> {
  std::optional<double> init_timeout;  // seconds
};

// The options of a communicator from a Config or None.
Communicator::Options options_from_python(const py::object& config, int device);

}  // namespace pynccl::python
