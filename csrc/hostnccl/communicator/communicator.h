// One rank of a segment, as its user holds it: the order of its operations, its state and its
// error, and what its running operation keeps from call to call.
//
// Operations run one launch at a time, in the order of their sequences; what only the running
// launch touches needs no lock.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hostnccl/base/handle.h"
#include "hostnccl/base/task.h"
#include "hostnccl/communicator/redop.h"
#include "hostnccl/communicator/registrations.h"
#include "hostnccl/rendezvous/rendezvous.h"
#include "hostnccl/segment/comm_settings.h"
#include "hostnccl/segment/segment.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

class Communicator {
 public:
  explicit Communicator(CommSettings settings) : settings_(std::move(settings)) {}

  // Life. initialize() blocks until all ranks are there; watch tells who will never come.
  void initialize(int nranks, int rank, const RendezvousName& name, Rendezvous::Watch watch = {});
  void finalize();  // blocks until what has been issued is done; later operations are refused
  void start_finalizing();
  void destroy();
  void abort();

  // Making other communicators of it (communicator_life.cpp).
  //
  // Revoked, it is no longer for operations, those under way end with an error, and those of the
  // other ranks too; but it can be split and shrunk, however dead some ranks are.
  enum class Revoker { Revoke, Shrink };
  void revoke(Revoker by);
  bool revoked() const { return revoked_.load(std::memory_order_seq_cst); }
  void check_parent() const;     // ready to make others of it
  void wait_until_idle() const;  // nothing of this rank is under way
  // The records of all ranks, which have revoked it. Votes have numbers as operations have
  // sequences.
  uint32_t next_agreement() { return ++agreements_; }
  std::vector<ExchangeRecord> agreement(const ExchangeRecord& own, uint32_t number);
  RendezvousName shrink_name(const std::vector<int>& excluded);
  abi::ncclUniqueId make_grow_id();
  void check_grow_id(const RendezvousName& name) const;
  void use_grow_id();

  // Its memory. All ranks suspend and resume together; see suspension.h.
  void suspension_barrier();  // until all ranks have come to the same step of it
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  void set_suspended(bool suspended) { suspended_.store(suspended, std::memory_order_release); }
  void release_memory();
  Segment::MemoryUsage memory() const;  // bytes, scratch memory included

  const CommSettings& settings() const { return settings_; }
  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  Segment& segment() const { return *segment_; }
  RedOps& red_ops() { return red_ops_; }
  Registrations& registrations() { return registrations_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  uint32_t& signals_taken(int peer, uint32_t signal);  // of those that a peer has given

  // State as the user sees it.
  void check_known() const;    // not of before a fork
  void check_ready() const;    // initialised: its rank and size are known
  void check_settled() const;  // not on its way into or out of suspension
  void check_usable() const;   // ready for an operation; throws its error if it has one
  abi::ncclResult_t async_error() const;
  std::optional<std::string> error_text() const;  // or who is missing while it initialises
  Error error() const;                            // there must be one
  void fail(const Error& error) noexcept;         // the first one stays; ends the segment

  // Order. A sequence's turn has come when completed() reaches it.
  uint32_t take_sequence(uint32_t count = 1) { return issued_.fetch_add(count); }
  Flag& completed() { return completed_; }
  void begin();  // this rank's launch runs, or a job of its own; throws if it has failed
  void end() { running_.fetch_sub(1, std::memory_order_acq_rel); }
  void begin_job() { running_.fetch_add(1, std::memory_order_acq_rel); }
  void begin_background() { background_.fetch_add(1, std::memory_order_acq_rel); }
  void end_background() { background_.fetch_sub(1, std::memory_order_acq_rel); }
  void begin_change() { changing_.fetch_add(1, std::memory_order_acq_rel); }  // ncclInProgress
  void end_change() { changing_.fetch_sub(1, std::memory_order_acq_rel); }
  void check_wait(const Blocked& blocked, bool look_for_life) const;

  // The running collective.
  void next_staging() { ++staging_; }
  uint32_t staging_index() const { return staging_; }
  uint32_t signal_step() {
    step_of(rank_).signal(++step_);
    return step_;
  }
  Flag& step_of(int peer) const { return segment_->rank_state(peer).step; }
  Descriptor& own_descriptor() const { return descriptor_of(rank_); }
  Descriptor& descriptor_of(int peer) const {
    return segment_->rank_state(peer).descriptors[staging_ & 1];
  }
  const void** sources() { return sources_.data(); }
  Scalar* scalars() { return scalars_.data(); }
  void* scratch(int peer, size_t bytes);  // bytes: the same in every call

 private:
  enum class Phase { Initializing, Ready, Finalizing, Finalized };

  void meet(const RendezvousName& name, Rendezvous::Watch watch);
  void barrier(Segment& segment, uint32_t step, Clock::time_point deadline);
  void drain();
  void await_all(Flag RankState::* counter, uint32_t step) const;
  Error abort_for_others() const;  // what they get to know of it
  Error revocation() const;
  Error revocation_for_others() const;
  bool in_flight() const { return issued_.load() != completed_.load(); }

  const CommSettings settings_;
  const uint32_t generation_ = fork_generation();
  int rank_ = -1;
  int nranks_ = 0;
  std::shared_ptr<Segment> segment_;
  RedOps red_ops_;
  Registrations registrations_;
  Windows windows_;

  std::atomic<Phase> phase_{Phase::Initializing};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> suspended_{false};
  std::atomic<int> changing_{0};
  Revoker revoker_ = Revoker::Revoke;  // once it is revoked
  std::atomic<abi::ncclResult_t> error_code_{abi::ncclSuccess};
  mutable std::mutex mutex_;
  std::string error_text_;
  std::shared_ptr<Rendezvous> rendezvous_;   // while it initialises
  std::optional<RendezvousName> grow_name_;  // given out and not used yet
  std::map<std::vector<int>, uint32_t> shrinks_;

  std::atomic<uint32_t> issued_{0};
  std::atomic<int> running_{0};
  std::atomic<int> background_{0};  // jobs that a non-blocking communicator is busy with
  Flag completed_;

  uint32_t staging_ = 0;
  uint32_t step_ = 0;
  std::vector<const void*> sources_;
  std::vector<Scalar> scalars_;
  std::vector<char> scratch_;
  std::vector<uint32_t> signals_taken_;
  std::atomic<size_t> scratch_bytes_{0};
  std::atomic<uint32_t> agreements_{0};
  Flag agreed_;
  uint32_t suspension_ = 0;
};

// A job of a communicator, which abort and destroy wait for.
class JobGuard {
 public:
  explicit JobGuard(const Ref<Communicator>& comm) : comm_(comm) { comm_->begin_job(); }
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;
  ~JobGuard() { comm_->end(); }

 private:
  const Ref<Communicator> comm_;
};

HandleTable<Communicator>& communicators();

}  // namespace hostnccl
