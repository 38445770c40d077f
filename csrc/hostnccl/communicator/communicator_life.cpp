// What a communicator is besides a way for operations: the origin of other communicators, also when
// ranks of it are dead, and memory that can be given back.
#include "hostnccl/communicator/communicator.h"

namespace hostnccl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr int kLooksForLife = 4;  // every so many looks also at processes

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += format("%s%d", text.empty() ? "" : ",", rank);
  return text;
}

}  // namespace

void Communicator::revoke(Revoker by) {
  const std::lock_guard lock(mutex_);
  if (revoked()) return;
  revoker_ = by;
  // Before the blocked ones of this rank hear of it: the others are to know whom to blame. Who does
  // not wait for this rank need not know.
  if (in_flight()) segment_->fail(revocation_for_others());
  segment_->leave(rank_, by == Revoker::Revoke ? Presence::Revoked : Presence::Shrunk);
  revoked_.store(true, std::memory_order_seq_cst);
}

Error Communicator::revocation_for_others() const {
  return Error(abi::ncclRemoteError,
               segment_->name_of(rank_) + (revoker_ == Revoker::Revoke
                                               ? " revoked its communicator"
                                               : " ended all operations of its communicator to "
                                                 "shrink it"));
}

Error Communicator::revocation() const {
  const char* how = revoker_ == Revoker::Revoke
                        ? "comm was revoked by ncclCommRevoke"
                        : "the operations of comm were ended by ncclCommShrink with "
                          "NCCL_SHRINK_ABORT";
  return Error(abi::ncclInvalidUsage,
               std::string(how) + ": it can only be split, shrunk and destroyed");
}

void Communicator::check_parent() const {
  check_ready();
  if (revoked()) return;
  check_settled();
  if (error_code_.load(std::memory_order_acquire) != abi::ncclSuccess || segment_->failed()) {
    throw error();
  }
  if (phase_.load(std::memory_order_acquire) != Phase::Ready) {
    hostnccl::fail(abi::ncclInvalidUsage, "comm was finalized by ncclCommFinalize");
  }
}

void Communicator::await_all(Flag RankState::* counter, uint32_t step) const {
  const bool for_votes = counter == &RankState::agreement_step;
  for (int peer = 0; peer < nranks_; ++peer) {
    const WaitCondition condition{&(segment_->rank_state(peer).*counter), step};
    for (int looks = 1; !condition.met(); ++looks) {
      sleep_on(condition, kLook);
      if (condition.met()) break;
      if (aborted_ || (!for_votes && (revoked() || segment_->failed()))) throw error();
      const bool look_for_life = looks % kLooksForLife == 0;
      for_votes ? segment_->check_agreement_peer(peer, condition, look_for_life)
                : segment_->check_owner(peer, condition, look_for_life);
    }
  }
}

std::vector<ExchangeRecord> Communicator::agreement(const ExchangeRecord& own, uint32_t number) {
  const WaitCondition turn{&agreed_, number - 1};
  while (!turn.met()) {
    if (aborted_) throw error();
    sleep_on(turn, kLook);
  }
  std::vector<ExchangeRecord> all;
  try {
    segment_->rank_state(rank_).records[number & 1] = own;
    segment_->rank_state(rank_).agreement_step.signal(number);
    await_all(&RankState::agreement_step, number);
    for (int peer = 0; peer < nranks_; ++peer) {
      all.push_back(segment_->rank_state(peer).records[number & 1]);
    }
  } catch (...) {
    agreed_.signal(number);  // the next one finds out by itself
    throw;
  }
  agreed_.signal(number);
  return all;
}

void Communicator::suspension_barrier() {
  segment_->rank_state(rank_).suspension_step.signal(++suspension_);
  await_all(&RankState::suspension_step, suspension_);
}

// The same for all survivors without a word between them: how often they have shrunk it so.
RendezvousName Communicator::shrink_name(const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derived_name(segment_->name(), format("shrink %u %s", number, to_text(excluded).c_str()));
}

abi::ncclUniqueId Communicator::make_grow_id() {
  const std::lock_guard lock(mutex_);
  if (grow_name_) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "the id that ncclCommGetUniqueId gave for this comm before has not been used by "
                   "ncclCommGrow yet");
  }
  const abi::ncclUniqueId id = make_unique_id(Purpose::Grow);
  grow_name_ = read_unique_id(id, Purpose::Grow, "uniqueId").name;
  return id;
}

void Communicator::check_grow_id(const RendezvousName& name) const {
  const std::lock_guard lock(mutex_);
  if (grow_name_ && *grow_name_ == name) return;
  hostnccl::fail(abi::ncclInvalidArgument,
                 "uniqueId was not made by ncclCommGetUniqueId for this rank of comm, or has been "
                 "used already");
}

void Communicator::use_grow_id() {
  const std::lock_guard lock(mutex_);
  grow_name_.reset();
}

void Communicator::release_memory() {
  segment_->release_memory(rank_);
  std::vector<char>().swap(scratch_);
  scratch_bytes_ = 0;
}

Segment::MemoryUsage Communicator::memory() const {
  Segment::MemoryUsage held = segment_->memory_usage(rank_);
  held.releasable += scratch_bytes_;
  return held;
}

}  // namespace hostnccl
