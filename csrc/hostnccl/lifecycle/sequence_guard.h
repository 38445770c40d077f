// A rank's turn in the order of a communicator's operations, for something that is no operation.
#pragma once

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

class SequenceGuard {
 public:
  // Waits for the turn; throws, like an operation, when it cannot come any more.
  SequenceGuard(Communicator& comm, uint32_t sequence) : comm_(comm), sequence_(sequence) {
    constexpr auto kLook = std::chrono::milliseconds(50);
    const Blocked before{{&comm.completed(), sequence}, comm.rank()};
    while (!before.condition.met()) {
      sleep_on(before.condition, kLook);
      if (!before.condition.met()) comm.check_wait(before, false);
    }
  }
  SequenceGuard(const SequenceGuard&) = delete;
  SequenceGuard& operator=(const SequenceGuard&) = delete;
  ~SequenceGuard() { comm_.completed().signal(sequence_ + 1); }

 private:
  Communicator& comm_;
  const uint32_t sequence_;
};

}  // namespace hostnccl
