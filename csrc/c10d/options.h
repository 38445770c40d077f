// PyncclOptions: timeout, stream priority and NCCL configuration.
#pragma once

#include "compat.h"
#include "connection.h"

namespace pynccl::dist {

struct PyncclOptions final : c10d::Backend::Options {
  explicit PyncclOptions(std::chrono::milliseconds limit = kBackendDefaultTimeout)
      : c10d::Backend::Options("pynccl", limit) {}

#if PYNCCL_TORCH_SINCE(2, 14)
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<PyncclOptions>(*this);
  }
#endif

  // The keyword arguments for a connector of a group with these options. Requires the GIL.
  py::dict settings() const {
    return py::dict(py::arg("name") = group_name, py::arg("timeout") = seconds(timeout),
                    py::arg("config") = config ? *config : py::none());
  }

  bool high_priority = false;
  Held config;  // a pynccl.nccl.Config; null for NCCL's defaults
};

}  // namespace pynccl::dist
