#include "hostnccl/communicator/communicator.h"

#include <thread>

#include "hostnccl/base/delay.h"
#include "hostnccl/base/tuning.h"

namespace hostnccl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kPoll = std::chrono::milliseconds(1);

}  // namespace

HandleTable<Communicator>& communicators() {
  static HandleTable<Communicator>& table = *new HandleTable<Communicator>;
  return table;
}

void Communicator::initialize(int nranks, int rank, const RendezvousName& name,
                              Rendezvous::Watch watch) {
  rank_ = rank;
  nranks_ = nranks;
  try {
    meet(name, std::move(watch));
  } catch (...) {
    fail(current_error());
    throw error();
  }
}

void Communicator::meet(const RendezvousName& name, Rendezvous::Watch watch) {
  read_tuning();
  Delay::read_seed();
  Delay::set_rank(rank_);
  const auto rendezvous = std::make_shared<Rendezvous>(nranks_, rank_, std::move(watch));
  {
    const std::lock_guard lock(mutex_);
    rendezvous_ = rendezvous;
    if (aborted_) rendezvous->cancel();
  }
  const std::shared_ptr<Segment> segment = rendezvous->run(name);
  try {
    segment->announce_rank(rank_, settings_.signals);
    barrier(*segment, 1, rendezvous->deadline());
    segment->probe_peer_memory(rank_);
    barrier(*segment, 2, rendezvous->deadline());
    segment->finish_setup();
  } catch (...) {
    segment->fail(current_error());
    segment->leave(rank_, Presence::Aborted);
    throw;
  }
  step_ = 2;
  sources_.resize(static_cast<size_t>(nranks_));
  scalars_.resize(static_cast<size_t>(nranks_));
  const std::lock_guard lock(mutex_);
  rendezvous_.reset();
  segment_ = segment;
  phase_ = Phase::Ready;
}

// Until every rank of a segment that is being set up has come to a step.
void Communicator::barrier(Segment& segment, uint32_t step, Clock::time_point deadline) {
  SpinBackoff backoff(segment.oversubscribed());
  auto looked = Clock::now();
  for (int peer = 0; peer < nranks_; ++peer) {
    const WaitCondition condition{&segment.rank_state(peer).step, step};
    backoff.reset();
    while (!condition.met()) {
      if (backoff.wait()) continue;
      sleep_on(condition, kLook);
      if (condition.met()) break;
      if (aborted_) {
        hostnccl::fail(abi::ncclRemoteError, "%s aborted the initialisation of its communicator",
                       segment.name_of(rank_).c_str());
      }
      if (segment.failed()) throw segment.failure();
      const auto now = Clock::now();
      if (now > deadline) {
        hostnccl::fail(abi::ncclTimeout, "%s has arrived, but does not finish its initialisation",
                       segment.name_of(peer).c_str());
      }
      const bool look = now - looked > 4 * kLook;
      if (look) looked = now;
      segment.check_owner(peer, condition, look);
    }
  }
}

void Communicator::start_finalizing() {
  Phase ready = Phase::Ready;
  if (!phase_.compare_exchange_strong(ready, Phase::Finalizing)) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "ncclCommFinalize was called before on this communicator");
  }
}

void Communicator::finalize() {
  drain();
  if (async_error() > abi::ncclSuccess && async_error() != abi::ncclInProgress) throw error();
  phase_ = Phase::Finalized;
}

// Until everything that has been issued is done, or will never be because of an error.
void Communicator::drain() {
  const WaitCondition last{&completed_, issued_.load()};
  while (!last.met()) {
    if (aborted_ || revoked() || error_code_ != abi::ncclSuccess || segment_->failed()) break;
    sleep_on(last, kLook);
  }
}

void Communicator::wait_until_idle() const {
  while (running_.load(std::memory_order_seq_cst) != 0) std::this_thread::sleep_for(kPoll);
}

void Communicator::destroy() {
  if (generation_ != fork_generation()) return;  // the segment is the parent's
  if (phase_ == Phase::Initializing) return abort();
  drain();
  wait_until_idle();
  windows_.close_all();
  segment_->leave(rank_, Presence::Left);
}

void Communicator::abort() {
  if (generation_ != fork_generation()) return;
  {
    const std::lock_guard lock(mutex_);
    if (error_code_ == abi::ncclSuccess) {
      error_text_ = "the communicator was aborted by ncclCommAbort";
      error_code_ = abi::ncclInvalidUsage;  // from here on no operation begins
    }
    if (segment_ != nullptr && in_flight()) {
      // Before the blocked ones of this rank hear of it: the others are to know whom to blame.
      segment_->fail(abort_for_others());
    }
    aborted_ = true;
    if (rendezvous_ != nullptr) rendezvous_->cancel();
  }
  wait_until_idle();
  windows_.close_all();
  if (segment_ != nullptr) segment_->leave(rank_, Presence::Aborted);
}

void Communicator::check_known() const {
  if (generation_ != fork_generation()) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "comm was made before this process was forked from its parent; a child must "
                   "make its own");
  }
}

void Communicator::check_ready() const {
  check_known();
  if (phase_.load(std::memory_order_acquire) != Phase::Initializing) return;
  if (error_code_ != abi::ncclSuccess) throw error();
  hostnccl::fail(abi::ncclInvalidArgument,
                 "comm is not initialised yet: wait until ncclCommGetAsyncError says ncclSuccess");
}

void Communicator::check_settled() const {
  if (changing_.load(std::memory_order_acquire) == 0) return;
  hostnccl::fail(abi::ncclInvalidArgument,
                 "comm is being suspended or resumed: wait until ncclCommGetAsyncError says "
                 "ncclSuccess");
}

void Communicator::check_usable() const {
  const bool usable = generation_ == fork_generation() && phase_ == Phase::Ready && !revoked() &&
                      changing_ == 0 && error_code_ == abi::ncclSuccess && !suspended() &&
                      !segment_->failed();
  if (usable) [[likely]]
    return;
  check_ready();
  if (revoked()) throw error();
  check_settled();
  if (error_code_.load(std::memory_order_acquire) != abi::ncclSuccess || segment_->failed()) {
    throw error();
  }
  if (phase_.load(std::memory_order_acquire) != Phase::Ready) {
    hostnccl::fail(abi::ncclInvalidUsage, "comm was finalized by ncclCommFinalize");
  }
  if (suspended()) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "comm is suspended by ncclCommSuspend: ncclCommResume makes it usable again");
  }
}

Error Communicator::error() const {
  const std::string label = settings_.name.empty() ? "" : "communicator " + settings_.name + ": ";
  const std::lock_guard lock(mutex_);
  if (revoked()) return Error(revocation().code(), label + revocation().text());
  if (error_code_ != abi::ncclSuccess) return Error(error_code_, label + error_text_);
  const Error failure = segment_->failure();
  return Error(failure.code(), label + failure.text());
}

abi::ncclResult_t Communicator::async_error() const {
  if (revoked()) return running_.load() != 0 ? abi::ncclInProgress : abi::ncclSuccess;
  const abi::ncclResult_t code = error_code_.load(std::memory_order_acquire);
  if (code != abi::ncclSuccess) return code;
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::Initializing) return abi::ncclInProgress;
  if (segment_->failed()) return error().code();
  const bool busy = phase == Phase::Finalizing || changing_.load(std::memory_order_acquire) != 0 ||
                    background_.load(std::memory_order_acquire) != 0;
  return busy ? abi::ncclInProgress : abi::ncclSuccess;
}

std::optional<std::string> Communicator::error_text() const {
  const abi::ncclResult_t code = async_error();
  if (code == abi::ncclInProgress && !revoked()) {
    const std::lock_guard lock(mutex_);
    const Phase phase = phase_;
    std::string text = phase == Phase::Initializing ? "initialisation"
                       : phase == Phase::Finalizing ? "finalisation"
                       : changing_ != 0             ? "suspension or resumption"
                                                    : "registration of a window";
    text += " in progress";
    if (rendezvous_ != nullptr) text += ": " + rendezvous_->progress();
    return text;
  }
  if (code != abi::ncclSuccess) return error().text();  // revoked: what ends its operations
  return std::nullopt;
}

void Communicator::fail(const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (revoked()) {  // what ends its operations is no error of its own
    segment_->fail(revocation_for_others());
    return;
  }
  if (error_code_ == abi::ncclSuccess) {
    error_text_ = error.text();
    error_code_ = error.code();
  }
  // One that was about to begin when it was aborted.
  if (segment_ != nullptr) segment_->fail(aborted_ ? abort_for_others() : error);
}

Error Communicator::abort_for_others() const {
  return Error(abi::ncclRemoteError,
               segment_->name_of(rank_) + " aborted its communicator during an operation");
}

void Communicator::begin() {
  running_.fetch_add(1, std::memory_order_seq_cst);
  if (!aborted_.load() && !revoked() && error_code_ == abi::ncclSuccess && !segment_->failed())
    return;
  end();
  throw error();
}

void Communicator::check_wait(const Blocked& blocked, bool look_for_life) const {
  if (aborted_.load(std::memory_order_acquire) || revoked()) throw error();
  if (segment_->failed()) throw segment_->failure();
  segment_->check_owner(blocked.owner, blocked.condition, look_for_life);
}

uint32_t& Communicator::signals_taken(int peer, uint32_t signal) {
  const size_t each = settings_.signals.contexts * settings_.signals.per_context;
  if (signals_taken_.empty()) signals_taken_.resize(each * static_cast<size_t>(nranks_));
  return signals_taken_[each * static_cast<size_t>(peer) + signal];
}

void* Communicator::scratch(int peer, size_t bytes) {
  if (scratch_.empty()) {
    scratch_.resize(bytes * static_cast<size_t>(nranks_));
    scratch_bytes_ = scratch_.size();
  }
  return scratch_.data() + bytes * static_cast<size_t>(peer);
}

}  // namespace hostnccl
