// Communicator: the object behind an ncclComm_t, one rank's part of a communicator. Its members
// have headers of their own: CommState (state and error), OperationOrder (sequence numbers),
// CollectiveState and ConsumedSignals (running operations), Agreement, Recovery,
// Derivations, RedOps, Registrations and Windows.
#pragma once

#include <memory>

#include "hostnccl/base/handle.h"
#include "hostnccl/communicator/comm_state.h"
#include "hostnccl/communicator/derivations.h"
#include "hostnccl/communicator/operation_state.h"
#include "hostnccl/communicator/resources.h"
#include "hostnccl/communicator/waits.h"
#include "hostnccl/rendezvous/rendezvous.h"
#include "hostnccl/segment/comm_settings.h"
#include "hostnccl/segment/segment.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

class Communicator final : public WaitingCommunicator {
 public:
  // shares_with: the parent whose resources it shares. Empty: none.
  Communicator(CommSettings settings, std::shared_ptr<Creation> creation,
               Ref<Communicator> shares_with = {});
  ~Communicator();

  // Blocks until all ranks have joined.
  void initialize(int nranks, int rank, const RendezvousKey& key, Rendezvous::Watch watch);
  void finalize();  // after state().start_finalizing(). Blocks until issued operations are complete
  void destroy();   // throws the communicator's error afterwards, if it has one
  void abort();
  // See CommState::revoke(). The errors of the operations name what this rank waits for.
  void revoke(CommState::RevokedBy by);
  // Ends the wait of ranks that have joined, or join within some seconds, with an id that this rank
  // can no longer use. how: why, as the predicate of its name.
  void refuse_new_ranks(const char* how);

  // Throws the caller's error if no operation can be issued. If the communicator has failed, ranks
  // that wait for this process in other communicators get the reason.
  void check_usable() const {
    check([this] { state_.check_usable(); });
  }
  // The same for ncclCommFinalize, which accepts a suspended communicator.
  void check_finalizable() const {
    check([this] { state_.check_parent(); });
  }
  // Whether the rules of CommSettings::strict_calls apply to its calls.
  bool strict_calls() const { return !settings_.blocking && settings_.strict_calls; }
  // Called after an operation was issued. Returns whether it is in progress.
  bool begin_issuing() {
    if (!strict_calls() || nranks_ == 1) return false;
    state_.begin_issuing(false);
    return true;
  }
  // Called before the thread issues an operation: see WaitingThread.
  void note_use(WaitingThread& thread) {
    if (user_.load(std::memory_order_relaxed) != thread.number()) [[unlikely]]
      add_user(thread);
  }

  const CommSettings& settings() const { return settings_; }
  CommState::Reason why_it_waits() const;
  std::string label() const;  // the user's name for it, else a name that is equal on all ranks
  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  Segment& segment() const { return *segment_; }

  CommState& state() { return state_; }
  const CommState& state() const { return state_; }
  OperationOrder& order() { return order_; }
  CollectiveState& collective() { return collective_; }
  ConsumedSignals& consumed_signals() { return consumed_signals_; }
  Agreement& agreement() { return agreement_; }
  Recovery& recovery() { return recovery_; }
  Derivations& derivations() { return derivations_; }
  RedOps& red_ops() { return red_ops_; }
  Registrations& registrations() { return registrations_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  // Whether it shares resources with its parent or an open child. In strict mode only.
  bool shares() const { return shares_ || sharing_children_ != 0; }

  // The ranks whose signals an operation still awaits.
  std::vector<int> missing_in(const Wait& wait) const;
  void describe(const Wait& wait, PublishedWait& published) const override;
  // Called when an operation of this rank has failed: fails the communicator, informs Deadlocks,
  // and returns the error of the operation.
  Error fail_operation(const Error& error);
  void fail_interrupted();  // the same if the user has interrupted a wait of this rank

  // Bracket the operations of this rank that run together. Begin throws the communicator's error if
  // no operation may run any more.
  void begin_operations();
  void end_operations() { order_.end_running(); }

  // The memory of this rank, in bytes: its part of the segment and its scratch memory.
  Segment::MemoryUsage memory() const;
  void release_memory();  // for suspend_job()

 private:
  template <typename Check>
  void check(Check&& check_state) const {
    if (shares_with_ && shares_with_->state().aborted()) [[unlikely]]
      fail_sharing();
    try {
      check_state();
    } catch (const Error&) {
      note_failure();
      throw;
    }
  }
  std::shared_ptr<Segment> join_segment(const RendezvousKey& key, Rendezvous::Watch watch);
  void await_step(Segment& segment, uint32_t step, const Rendezvous& rendezvous) const;
  void end_setup(Segment& segment) const;
  void await_tuning(Segment& segment, const Rendezvous& rendezvous) const;
  void await_peer(Segment& segment, int peer, const WaitCondition& condition,
                  const Rendezvous& rendezvous, bool spins) const;
  void drain();
  Ref<Communicator> end_sharing();
  [[noreturn]] void fail_sharing() const;
  void note_failure() const noexcept;
  void note_failure(const Error& error) const noexcept;
  void add_user(WaitingThread& thread);
  void leave(Presence how);

  const CommSettings settings_;
  const std::shared_ptr<Creation> creation_;
  Ref<Communicator> shares_with_;
  std::atomic<bool> shares_{false};  // with its parent, until it ends
  std::atomic<int> sharing_children_{0};
  int rank_ = -1;
  int nranks_ = 0;
  std::shared_ptr<Segment> segment_;
  OperationOrder order_;
  CommState state_;
  CollectiveState collective_;
  ConsumedSignals consumed_signals_;
  Agreement agreement_;
  Recovery recovery_;
  Derivations derivations_;
  RedOps red_ops_;
  Registrations registrations_;
  Windows windows_;
  std::atomic<uint64_t> user_{0};  // the thread that issued the last operation
  std::mutex users_mutex_;
  std::shared_ptr<WaitingThread> creator_;  // until a thread issues an operation
  std::vector<std::shared_ptr<WaitingThread>> users_;
};

abi::ncclComm_t handle_of(const Ref<Communicator>& comm);

}  // namespace hostnccl
