// TimeoutPolicy: how a process reacts to an expired time limit, besides the exceptions of waits.
#pragma once

#include <functional>
#include <memory>

#include "nccl/failure.h"

namespace pynccl {

class Communicator;

struct TimeoutPolicy {
  // Called by the monitor after the communicator was revoked; must not block.
  using Callback = std::function<void(const std::shared_ptr<Communicator>&, const NcclFailure&)>;

  bool abort = false;              // abort the process with SIGABRT
  Callback callback;               // may be empty
  std::shared_ptr<void> function;  // the user function that callback calls
};

// The policy of communicators that set none: PYNCCL_ON_TIMEOUT. Throws std::invalid_argument.
TimeoutPolicy default_policy();

// Writes a text to stderr and aborts the process with SIGABRT.
[[noreturn]] void abort_process(const std::string& text);

}  // namespace pynccl
