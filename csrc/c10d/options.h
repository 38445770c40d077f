// PyncclOptions: the timeout, the priority of its streams, the configuration of NCCL.
#pragma once

#include "compat.h"
#include "connection.h"

namespace pynccl::dist {

struct PyncclOptions final : c10d::Backend::Options {
  explicit PyncclOptions(std::chrono::milliseconds limit = kBackendDefaultTimeout)
      : c10d::Backend::Options("pynccl", limit) {}

  bool high_priority = false;
  Held config;  // a pynccl.nccl.Config; null for NCCL's defaults
};

}  // namespace pynccl::dist
