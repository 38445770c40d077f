// A rank's turn in the order of a communicator's operations, for something that is no operation.
#pragma once

#include "hostnccl/communicator.h"

namespace hostnccl {

class Turn {
 public:
  // Waits for the turn; throws, like an operation, when it cannot come any more.
  Turn(Communicator& comm, uint32_t ticket) : comm_(comm), ticket_(ticket) {
    constexpr auto kLook = std::chrono::milliseconds(50);
    const Blocked before{{&comm.completed(), ticket}, comm.rank()};
    while (!before.wanted.arrived()) {
      sleep_on(before.wanted, kLook);
      if (!before.wanted.arrived()) comm.check_wait(before, false);
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { comm_.completed().raise(ticket_ + 1); }

 private:
  Communicator& comm_;
  const uint32_t ticket_;
};

}  // namespace hostnccl
