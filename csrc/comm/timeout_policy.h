// TimeoutPolicy: what happens in a process when a time limit of a communicator is over, besides the
// errors of those who wait.
#pragma once

#include <functional>
#include <memory>

#include "nccl/failure.h"

namespace pynccl {

class Communicator;

struct TimeoutPolicy {
  // Called by the monitor after the communicator was revoked; must not block.
  using Callback = std::function<void(const std::shared_ptr<Communicator>&, const NcclFailure&)>;

  bool abort = false;              // end the process with SIGABRT
  Callback callback;               // where there is one
  std::shared_ptr<void> function;  // the user's, which callback calls
};

// PYNCCL_ON_TIMEOUT, of communicators that set no policy. Throws std::invalid_argument.
TimeoutPolicy default_policy();

// Writes a text to stderr, and ends the process with SIGABRT.
[[noreturn]] void abort_process(const std::string& text);

}  // namespace pynccl
