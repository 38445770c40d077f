// Scope of one sequence number in the order of a communicator's operations, for a step that is not
// itself an operation: all earlier operations are complete, later ones wait for its end.
#pragma once

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

class SequenceGuard {
 public:
  // Waits for the earlier operations. Throws, like an operation, if they cannot complete. If this
  // rank gives up the creation, comm fails: no later operation can run.
  SequenceGuard(Communicator& comm, uint32_t sequence, const Creation* creation = nullptr)
      : order_(comm.order()), sequence_(sequence) {
    constexpr auto kCheckInterval = std::chrono::milliseconds(50);
    const Blocked earlier{order_.before(sequence), comm.rank()};
    const Sleeping sleeping({earlier.condition});
    while (!earlier.condition.met()) {
      sleep_on(earlier.condition, kCheckInterval);
      if (earlier.condition.met()) break;
      comm.state().check_wait(earlier, false);
      const auto reason = creation ? creation->given_up() : std::nullopt;
      if (!reason) continue;
      comm.state().fail(Error(reason->code(), comm.segment().name_of(comm.rank()) + " " +
                                                  reason->text() +
                                                  "; it waited for earlier operations"));
      throw comm.state().error();
    }
  }
  SequenceGuard(const SequenceGuard&) = delete;
  SequenceGuard& operator=(const SequenceGuard&) = delete;
  ~SequenceGuard() { order_.complete(sequence_); }

 private:
  OperationOrder& order_;
  const uint32_t sequence_;
};

}  // namespace hostnccl
