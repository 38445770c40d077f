// One rank of a world, as its user holds it: the order of its operations, its state and its error,
// and what its running operation keeps from call to call.
//
// Operations run one launch at a time, in the order of their tickets; what only the running launch
// touches needs no lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hostnccl/handle.h"
#include "hostnccl/redop.h"
#include "hostnccl/registrations.h"
#include "hostnccl/rendezvous.h"
#include "hostnccl/settings.h"
#include "hostnccl/task.h"
#include "hostnccl/window.h"
#include "hostnccl/world.h"

namespace hostnccl {

class Communicator {
 public:
  explicit Communicator(Settings settings) : settings_(std::move(settings)) {}

  // Life. initialize() blocks until all ranks are there.
  void initialize(int nranks, int rank, const MeetingName& name);
  void finalize();  // blocks until what has been issued is done; later operations are refused
  void start_finalizing();
  void destroy();
  void abort();

  const Settings& settings() const { return settings_; }
  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  World& world() const { return *world_; }
  RedOps& red_ops() { return red_ops_; }
  Registrations& registrations() { return registrations_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  uint32_t& signals_taken(int peer, uint32_t signal);  // of those that a peer has given

  // State as the user sees it.
  void check_known() const;   // not of before a fork
  void check_ready() const;   // initialised: its rank and size are known
  void check_usable() const;  // ready for an operation; throws its error if it has one
  abi::ncclResult_t async_error() const;
  std::optional<std::string> error_text() const;  // or who is missing while it initialises
  Error error() const;                            // there must be one
  void fail(const Error& error) noexcept;         // the first one stays; ends the world

  // Order. A ticket's turn has come when completed() reaches it.
  uint32_t take_ticket() { return issued_.fetch_add(1); }
  Counter& completed() { return completed_; }
  void begin();  // this rank's launch runs, or a job of its own; throws if it has failed
  void end() { running_.fetch_sub(1, std::memory_order_acq_rel); }
  void begin_job() { running_.fetch_add(1, std::memory_order_acq_rel); }
  void begin_background() { background_.fetch_add(1, std::memory_order_acq_rel); }
  void end_background() { background_.fetch_sub(1, std::memory_order_acq_rel); }
  void check_wait(const Blocked& blocked, bool look_for_life) const;

  // The running collective.
  void next_turn() { ++turn_; }
  uint32_t turn() const { return turn_; }
  uint32_t raise_stage() {
    stage_of(rank_).raise(++stage_);
    return stage_;
  }
  Counter& stage_of(int peer) const { return world_->lane(peer).stage; }
  Descriptor& own_descriptor() const { return descriptor_of(rank_); }
  Descriptor& descriptor_of(int peer) const { return world_->lane(peer).descriptors[turn_ & 1]; }
  const void** sources() { return sources_.data(); }
  Scalar* scalars() { return scalars_.data(); }
  void* scratch(int peer, size_t bytes);  // bytes: the same in every call

 private:
  enum class Phase { Initializing, Ready, Finalizing, Finalized };

  void meet(const MeetingName& name);
  void step_together(World& world, uint32_t stage, Clock::time_point deadline);
  void drain();
  void wait_until_idle() const;
  Error abort_for_others() const;  // what they get to know of it
  bool in_flight() const { return issued_.load() != completed_.load(); }

  const Settings settings_;
  const uint32_t generation_ = fork_generation();
  int rank_ = -1;
  int nranks_ = 0;
  std::shared_ptr<World> world_;
  RedOps red_ops_;
  Registrations registrations_;
  Windows windows_;

  std::atomic<Phase> phase_{Phase::Initializing};
  std::atomic<bool> aborted_{false};
  std::atomic<abi::ncclResult_t> error_code_{abi::ncclSuccess};
  mutable std::mutex mutex_;
  std::string error_text_;
  std::shared_ptr<Rendezvous> rendezvous_;  // while it initialises

  std::atomic<uint32_t> issued_{0};
  std::atomic<int> running_{0};
  std::atomic<int> background_{0};  // jobs that a non-blocking communicator is busy with
  Counter completed_;

  uint32_t turn_ = 0;
  uint32_t stage_ = 0;
  std::vector<const void*> sources_;
  std::vector<Scalar> scalars_;
  std::vector<char> scratch_;
  std::vector<uint32_t> signals_taken_;
};

HandleTable<Communicator>& communicators();

}  // namespace hostnccl
