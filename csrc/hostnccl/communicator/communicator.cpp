#include "hostnccl/communicator/communicator.h"

#include <algorithm>

#include "hostnccl/base/delay.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/tuning.h"
#include "hostnccl/communicator/waits.h"
#include "hostnccl/segment/calibration.h"

namespace hostnccl {

abi::ncclComm_t handle_of(const Ref<Communicator>& comm) {
  return reinterpret_cast<abi::ncclComm_t>(comm.slot());
}

Communicator::Communicator(CommSettings settings, std::shared_ptr<Creation> creation,
                           Ref<Communicator> shares_with)
    : settings_(std::move(settings)),
      creation_(std::move(creation)),
      shares_with_(std::move(shares_with)),
      state_(settings_, order_, *creation_),
      consumed_signals_(settings_.signals),
      agreement_(state_),
      recovery_(state_),
      red_ops_(settings_.strict),
      creator_(WaitingThread::share_current()) {
  shares_ = static_cast<bool>(shares_with_);
  if (shares_) ++shares_with_->sharing_children_;
  creator_->add_unused(1);
}

Communicator::~Communicator() {
  end_sharing();
  if (creator_) creator_->add_unused(-1);
  for (const auto& user : users_) user->add_used(-1);
  if (segment_ != nullptr) Deadlocks::remove(*segment_, rank_);
}

// In NCCL, such operations end without a result.
void Communicator::fail_sharing() const {
  fail(abi::ncclInternalError, "the communicator that comm shares its resources with was aborted");
}

void Communicator::note_failure() const noexcept {
  if (!state_.of_this_process() || state_.initializing() || state_.revoked()) return;
  if (segment_->failed()) note_failure(segment_->failure());
}

void Communicator::note_failure(const Error& error) const noexcept {
  try {
    Deadlocks::note_failure(*segment_, rank_, label(), error);
  } catch (...) {  // the other ranks get no reason
  }
}

Error Communicator::fail_operation(const Error& error) {
  state_.fail(error);
  note_failure(state_.for_others(error));
  return state_.operation_error();
}

void Communicator::fail_interrupted() {
  fail_operation(Error(abi::ncclRemoteError, segment_->name_of(rank_) + " " + kInterruption));
}

void Communicator::add_user(WaitingThread& thread) {
  user_.store(thread.number(), std::memory_order_relaxed);
  const std::lock_guard lock(users_mutex_);
  if (const auto creator = std::exchange(creator_, nullptr)) creator->add_unused(-1);
  std::erase_if(users_, [](const auto& user) { return user->ended(); });
  const auto is_thread = [&thread](const auto& user) { return user.get() == &thread; };
  if (std::ranges::any_of(users_, is_thread)) return;
  users_.push_back(WaitingThread::share_current());
  thread.add_used(1);
}

std::string Communicator::label() const {
  if (!settings_.name.empty()) return settings_.name;
  return format("%08x", static_cast<uint32_t>(segment_->identity() >> 32));
}

void Communicator::initialize(int nranks, int rank, const RendezvousKey& key,
                              Rendezvous::Watch watch) {
  rank_ = rank;
  nranks_ = nranks;
  try {
    segment_ = join_segment(key, std::move(watch));
    collective_.attach(*segment_, rank_);
    agreement_.attach(*segment_, rank_);
    recovery_.attach(*segment_, rank_);
    state_.finish_initializing(*segment_, rank_);
    Deadlocks::add(segment_, rank_);
  } catch (...) {
    state_.fail(current_error());
    throw state_.error();
  }
}

std::shared_ptr<Segment> Communicator::join_segment(const RendezvousKey& key,
                                                    Rendezvous::Watch watch) {
  check_params();
  Delay::read_seed();
  Delay::set_rank(rank_);
  const auto rendezvous =
      std::make_shared<Rendezvous>(nranks_, rank_, std::move(watch), *creation_);
  state_.start_initializing(rendezvous);
  std::shared_ptr<Segment> segment = rendezvous->run(key);
  try {
    segment->announce_rank(rank_, settings_);
    await_step(*segment, 1, *rendezvous);
    await_tuning(*segment, *rendezvous);
    segment->probe_peer_memory(rank_);
    await_step(*segment, 2, *rendezvous);
    end_setup(*segment);
    segment->finish_setup();
  } catch (...) {
    segment->fail(current_error());
    segment->leave(rank_, Presence::Aborted);
    throw;
  }
  return segment;
}

// Completes the setup, unless a rank gave up before it saw that all had completed both steps.
void Communicator::end_setup(Segment& segment) const {
  if (!segment.end_setup(Header::Complete)) throw segment.failure();
}

// Returns when rank 0 has published the measurements of this machine. Ranks 0 and 1 measure it now
// if there are no calm ones since it booted.
void Communicator::await_tuning(Segment& segment, const Rendezvous& rendezvous) const {
  const WaitCondition tuned{&segment.tuned(), 1};
  if (!tuned.met() && rank_ == 0) {
    if (const auto found = lead_calibration(segment)) {
      adopt_measurements(*found);
      save_measurements(*found);
    }
    segment.set_tuning(known_measurements());
  } else if (!tuned.met()) {
    if (rank_ == 1) follow_calibration(segment);
    await_peer(segment, 0, tuned, rendezvous, false);  // spinning would disturb the measurement
  }
  if (const auto found = segment.measurements()) adopt_measurements(*found);
}

// Returns when every rank has reached this step of the setup.
void Communicator::await_step(Segment& segment, uint32_t step, const Rendezvous& rendezvous) const {
  for (int peer = 0; peer < nranks_; ++peer) {
    await_peer(segment, peer, {&segment.rank_state(peer).step, step}, rendezvous, true);
  }
}

void Communicator::await_peer(Segment& segment, int peer, const WaitCondition& condition,
                              const Rendezvous& rendezvous, bool spins) const {
  SpinBackoff backoff(segment.competing_ranks());
  while (spins && !condition.met() && backoff.wait()) {
  }
  sleep_until(condition, [&](bool check_liveness) {
    if (const auto reason = creation_->ended()) {
      throw Error(reason->code(), segment.name_of(rank_) + " " + reason->text());
    }
    rendezvous.check_joiners();
    segment.check_owner(peer, condition, check_liveness);
    // If the host died before all ranks had the segment, the peer may never have joined it.
    for (int other = 0; other < nranks_; ++other) {
      const WaitCondition last_step{&segment.rank_state(other).step, Segment::kSetupSteps};
      if (!last_step.met()) segment.check_owner(other, last_step, check_liveness);
    }
    // This rank may have been preempted since it last looked at the flag.
    if (creation_->late() && !condition.met() && segment.end_setup(Header::GivenUp)) {
      fail(abi::ncclTimeout,
           "%s gave up after %g s: %s has joined but does not finish its initialization",
           segment.name_of(rank_).c_str(), creation_->limit(), segment.name_of(peer).c_str());
    }
  });
}

void Communicator::finalize() {
  drain();
  state_.finish_finalizing();
}

// Returns when all issued operations are complete, or can no longer complete because of an error.
void Communicator::drain() {
  const WaitCondition complete = order_.before(order_.issued());
  const Sleeping sleeping({complete});
  while (!complete.met() && !state_.stopped()) {
    sleep_on(complete, kCheckInterval);
    if (!complete.met()) check_interrupt();
  }
}

// Returns the parent with which it has shared resources so far.
Ref<Communicator> Communicator::end_sharing() {
  if (!shares_.exchange(false)) return {};
  --shares_with_->sharing_children_;
  return shares_with_;
}

void Communicator::destroy() {
  if (!state_.of_this_process()) return;  // the segment belongs to the parent process
  if (state_.initializing()) return abort();
  end_sharing();
  drain();
  order_.wait_until_idle();
  windows_.close_all();
  const std::optional<Error> failure = state_.failure();
  leave(Presence::Left);
  if (failure) throw *failure;
}

void Communicator::abort() {
  if (!state_.of_this_process()) return;
  // NCCL has one abort flag for both, so the operations of the parent end without a result.
  if (const Ref<Communicator> parent = end_sharing(); parent && parent.slot()->open) {
    parent->state().fail(Error(abi::ncclInternalError,
                               "a communicator that shares the resources of comm was aborted"));
  }
  state_.abort(Deadlocks::reasons_of_this_process());
  derivations_.end(Creation::End::ParentAborted);
  order_.wait_until_idle();
  windows_.abandon_all();
  windows_.close_all();
  if (segment_ != nullptr) leave(Presence::Aborted);
}

void Communicator::refuse_new_ranks(const char* how) {
  const auto key = derivations_.take_grow_id();
  if (!key) return;
  refuse_ranks(*key, Error(abi::ncclRemoteError,
                           segment_->name_of(rank_) + " " + how + ", which can no longer grow"));
}

void Communicator::leave(Presence how) {
  Deadlocks::remove(*segment_, rank_);
  segment_->leave(rank_, how);
  refuse_new_ranks(how == Presence::Left ? "destroyed its communicator"
                                         : "aborted its communicator");
}

void Communicator::revoke(CommState::RevokedBy by) {
  const CommState::Reason reason = segment_ ? why_it_waits() : CommState::Reason();
  // Before the operations end, after which their threads may derive a communicator from this one.
  if (by == CommState::RevokedBy::Revoke) derivations_.end(Creation::End::ParentRevoked);
  state_.revoke(by, reason);
}

std::vector<int> Communicator::missing_in(const Wait& wait) const {
  if (!is_collective(wait.operation.kind)) return {wait.peer};
  std::vector<int> missing;
  for (int peer = 0; peer < nranks_; ++peer)
    if (!collective_.step_of(peer).reached(wait.condition.target)) missing.push_back(peer);
  if (missing.empty()) missing.push_back(wait.peer);  // it has arrived in the meantime
  return missing;
}

void Communicator::describe(const Wait& wait, PublishedWait& published) const {
  published.owner = segment_->process(wait.peer);
  published.identity = segment_->identity();
  published.rank = rank_;
  published.set_text(segment_->name_of(rank_) + " waits for " + ranks_text(missing_in(wait)) +
                     " in " + to_text(wait.operation) + " of communicator " + label());
}

CommState::Reason Communicator::why_it_waits() const {
  CommState::Reason reason;
  std::vector<ProcessId> processes;
  WaitingThread::visit_waits([&](uint64_t, const Wait& wait) {
    if (wait.comm != this || wait.condition.met()) return;
    const std::vector<int> missing = missing_in(wait);
    reason.waiting += (reason.waiting.empty() ? "waited for " : ", for ") + ranks_text(missing) +
                      " in " + to_text(wait.operation);
    for (const int rank : missing) processes.push_back(segment_->process(rank));
  });
  reason.cause =
      processes.empty() ? Deadlocks::reasons_of_this_process() : Deadlocks::reasons(processes);
  return reason;
}

void Communicator::begin_operations() {
  order_.begin_running();
  if (!state_.stopped()) return;
  order_.end_running();
  throw state_.error();
}

Segment::MemoryUsage Communicator::memory() const {
  Segment::MemoryUsage held = segment_->memory_usage(rank_);
  held.releasable += collective_.scratch_bytes();
  return held;
}

void Communicator::release_memory() {
  segment_->release_memory(rank_);
  collective_.release_scratch();
}

}  // namespace hostnccl
