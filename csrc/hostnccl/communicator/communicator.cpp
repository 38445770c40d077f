#include "hostnccl/communicator/communicator.h"

#include "hostnccl/base/delay.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/tuning.h"
#include "hostnccl/base/tuning_file.h"
#include "hostnccl/segment/calibration.h"

namespace hostnccl {
namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);
constexpr auto kLivenessInterval = 4 * kCheckInterval;

}  // namespace

HandleTable<Communicator>& communicators() {
  static HandleTable<Communicator>& table = *new HandleTable<Communicator>;
  return table;
}

abi::ncclComm_t handle_of(const Ref<Communicator>& comm) {
  return reinterpret_cast<abi::ncclComm_t>(comm.slot());
}

Communicator::Communicator(CommSettings settings, Ref<Communicator> shares_with)
    : settings_(std::move(settings)),
      shares_with_(std::move(shares_with)),
      state_(settings_, order_),
      consumed_signals_(settings_.signals),
      agreement_(state_) {
  if (shares_with_) ++shares_with_->sharing_children_;
}

void Communicator::initialize(int nranks, int rank, const RendezvousKey& key,
                              Rendezvous::Watch watch) {
  rank_ = rank;
  nranks_ = nranks;
  try {
    segment_ = join_segment(key, std::move(watch));
    collective_.attach(*segment_, rank_);
    agreement_.attach(*segment_, rank_);
    state_.finish_initializing(*segment_, rank_);
  } catch (...) {
    state_.fail(current_error());
    throw state_.error();
  }
}

std::shared_ptr<Segment> Communicator::join_segment(const RendezvousKey& key,
                                                    Rendezvous::Watch watch) {
  check_tuning();
  Delay::read_seed();
  Delay::set_rank(rank_);
  const auto rendezvous = std::make_shared<Rendezvous>(nranks_, rank_, std::move(watch));
  state_.start_initializing(rendezvous);
  std::shared_ptr<Segment> segment = rendezvous->run(key);
  try {
    segment->announce_rank(rank_, settings_);
    await_step(*segment, 1, *rendezvous);
    await_tuning(*segment, *rendezvous);
    segment->probe_peer_memory(rank_);
    await_step(*segment, 2, *rendezvous);
    segment->finish_setup();
  } catch (...) {
    segment->fail(current_error());
    segment->leave(rank_, Presence::Aborted);
    throw;
  }
  return segment;
}

// Returns when rank 0 has published what was measured of this machine. If nobody has measured it
// since it booted, the ranks 0 and 1 do it now.
void Communicator::await_tuning(Segment& segment, const Rendezvous& rendezvous) const {
  const WaitCondition tuned{&segment.tuned(), 1};
  if (!tuned.met() && rank_ == 0) {
    const auto found = can_calibrate(segment) ? lead_calibration(segment) : std::nullopt;
    if (found) save_measurements(*found);
    segment.set_tuning(found);
  } else if (!tuned.met()) {
    if (rank_ == 1 && can_calibrate(segment)) follow_calibration(segment);
    await_peer(segment, 0, tuned, rendezvous, false);  // spinning would disturb the measurement
  }
  if (const auto found = segment.measurements()) adopt_measurements(*found);
}

// Returns when every rank has reached this step of the initialisation.
void Communicator::await_step(Segment& segment, uint32_t step, const Rendezvous& rendezvous) const {
  for (int peer = 0; peer < nranks_; ++peer) {
    await_peer(segment, peer, {&segment.rank_state(peer).step, step}, rendezvous, true);
  }
}

void Communicator::await_peer(Segment& segment, int peer, const WaitCondition& condition,
                              const Rendezvous& rendezvous, bool spins) const {
  SpinBackoff backoff(segment.oversubscribed());
  auto last_check = Clock::now();
  while (!condition.met()) {
    if (spins && backoff.wait()) continue;
    sleep_on(condition, kCheckInterval);
    if (condition.met()) return;
    check_interrupt();
    if (state_.aborted()) {
      fail(abi::ncclRemoteError, "%s aborted the initialisation of its communicator",
           segment.name_of(rank_).c_str());
    }
    if (segment.failed()) throw segment.failure();
    rendezvous.check_joiners();
    const auto now = Clock::now();
    if (now > rendezvous.deadline()) {
      fail(abi::ncclTimeout, "%s has joined but does not finish its initialisation",
           segment.name_of(peer).c_str());
    }
    const bool check_liveness = now - last_check > kLivenessInterval;
    if (check_liveness) last_check = now;
    segment.check_owner(peer, condition, check_liveness);
  }
}

void Communicator::finalize() {
  drain();
  state_.finish_finalizing();
}

// Returns when all issued operations are complete, or can no longer complete because of an error.
void Communicator::drain() {
  const WaitCondition complete = order_.before(order_.issued());
  while (!complete.met() && !state_.stopped()) {
    sleep_on(complete, kCheckInterval);
    if (!complete.met()) check_interrupt();
  }
}

// The parent that it has shared resources with until now.
Ref<Communicator> Communicator::end_sharing() {
  if (shares_with_) --shares_with_->sharing_children_;
  return std::exchange(shares_with_, {});
}

void Communicator::destroy() {
  if (!state_.of_this_process()) return;  // the segment belongs to the parent process
  if (state_.initializing()) return abort();
  end_sharing();
  drain();
  order_.wait_until_idle();
  windows_.close_all();
  const std::optional<Error> failure = state_.failure();
  segment_->leave(rank_, Presence::Left);
  if (failure) throw *failure;
}

void Communicator::abort() {
  if (!state_.of_this_process()) return;
  // NCCL has one abort flag for both; the operations of the parent would end without a result.
  if (const Ref<Communicator> parent = end_sharing(); parent && parent.slot()->open) {
    parent->state().fail(Error(abi::ncclInvalidUsage,
                               "a communicator that shares the resources of comm was aborted"));
  }
  state_.abort();
  order_.wait_until_idle();
  windows_.close_all();
  if (segment_ != nullptr) segment_->leave(rank_, Presence::Aborted);
}

void Communicator::revoke(CommState::RevokedBy by) {
  state_.revoke(by, segment_ ? waiting_text() : "");
}

// "waited for ranks 1 and 3 in ncclAllReduce(count=4, float32, sum)"; empty where it does not wait.
std::string Communicator::waiting_text() const {
  std::string text;
  for (const WaitReport::Wait& wait : wait_report_.waits()) {
    if (wait.condition.met()) continue;
    std::vector<int> missing;
    if (is_collective(wait.operation.kind)) {
      for (int peer = 0; peer < nranks_; ++peer)
        if (!collective_.step_of(peer).reached(wait.condition.target)) missing.push_back(peer);
    } else {
      missing.push_back(wait.peer);
    }
    std::string ranks;
    for (size_t i = 0; i < missing.size(); ++i)
      ranks += (i == 0                    ? ""
                : i + 1 == missing.size() ? " and "
                                          : ", ") +
               std::to_string(missing[i]);
    text += (text.empty() ? "waited for rank" : ", for rank") +
            std::string(missing.size() > 1 ? "s " : " ") + ranks + " in " + to_text(wait.operation);
  }
  return text;
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
