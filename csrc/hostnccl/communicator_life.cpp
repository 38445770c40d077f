// What a communicator is besides a way for operations: the origin of other communicators, also when
// ranks of it are dead, and memory that can be given back.
#include "hostnccl/communicator.h"

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
  if (in_flight()) world_->fail(revocation_for_others());
  world_->leave(rank_, by == Revoker::Revoke ? Presence::Revoked : Presence::Shrunk);
  revoked_.store(true, std::memory_order_seq_cst);
}

Error Communicator::revocation_for_others() const {
  return Error(abi::ncclRemoteError,
               world_->name_of(rank_) + (revoker_ == Revoker::Revoke
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
  if (error_code_.load(std::memory_order_acquire) != abi::ncclSuccess || world_->failed()) {
    throw error();
  }
  if (phase_.load(std::memory_order_acquire) != Phase::Ready) {
    hostnccl::fail(abi::ncclInvalidUsage, "comm was finalized by ncclCommFinalize");
  }
}

void Communicator::await_all(Counter Lane::* counter, uint32_t step) const {
  const bool for_votes = counter == &Lane::votes;
  for (int peer = 0; peer < nranks_; ++peer) {
    const Wanted wanted{&(world_->lane(peer).*counter), step};
    for (int looks = 1; !wanted.arrived(); ++looks) {
      sleep_on(wanted, kLook);
      if (wanted.arrived()) break;
      if (aborted_ || (!for_votes && (revoked() || world_->failed()))) throw error();
      const bool look_for_life = looks % kLooksForLife == 0;
      for_votes ? world_->check_voter(peer, wanted, look_for_life)
                : world_->check_owner(peer, wanted, look_for_life);
    }
  }
}

std::vector<Ballot> Communicator::vote(const Ballot& own, uint32_t number) {
  const Wanted turn{&voted_, number - 1};
  while (!turn.arrived()) {
    if (aborted_) throw error();
    sleep_on(turn, kLook);
  }
  std::vector<Ballot> all;
  try {
    world_->lane(rank_).ballots[number & 1] = own;
    world_->lane(rank_).votes.raise(number);
    await_all(&Lane::votes, number);
    for (int peer = 0; peer < nranks_; ++peer) {
      all.push_back(world_->lane(peer).ballots[number & 1]);
    }
  } catch (...) {
    voted_.raise(number);  // the next one finds out by itself
    throw;
  }
  voted_.raise(number);
  return all;
}

void Communicator::meet_in_suspension() {
  world_->lane(rank_).suspension.raise(++suspension_);
  await_all(&Lane::suspension, suspension_);
}

// The same for all survivors without a word between them: how often they have shrunk it so.
MeetingName Communicator::shrink_name(const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derived_name(world_->name(), format("shrink %u %s", number, to_text(excluded).c_str()));
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

void Communicator::check_grow_id(const MeetingName& name) const {
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
  world_->release(rank_);
  std::vector<char>().swap(scratch_);
  scratch_bytes_ = 0;
}

World::Held Communicator::memory() const {
  World::Held held = world_->held(rank_);
  held.releasable += scratch_bytes_;
  return held;
}

}  // namespace hostnccl
