#include "hostnccl/communicator/recovery.h"

#include "hostnccl/base/interrupt.h"

namespace hostnccl {
namespace {

constexpr size_t kWordBits = 64;

void store(SharedRanks& shared, const RankSet& ranks) {
  constexpr RankSet kWord(~uint64_t{0});
  size_t shift = 0;
  for (auto& word : shared.words) {
    word.store((ranks >> shift & kWord).to_ullong(), std::memory_order_relaxed);
    shift += kWordBits;
  }
}

RankSet load(const SharedRanks& shared) {
  RankSet ranks;
  size_t shift = 0;
  for (const auto& word : shared.words) {
    ranks |= RankSet(word.load(std::memory_order_acquire)) << shift;
    shift += kWordBits;
  }
  return ranks;
}

}  // namespace

void Recovery::attach(Segment& segment, int rank) {
  segment_ = &segment;
  rank_ = rank;
  for (int member = 0; member < segment.nranks(); ++member) members_.set(size_t(member));
}

std::vector<int> Recovery::agree(const std::vector<int>& lost, Limit limit) {
  RankSet given_up;
  for (const int rank : lost) given_up.set(size_t(rank));
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  segment_->rank_state(rank_).recovery_step.signal(number_ + 1);
  std::optional<RankSet> members;
  while (!(members = decided())) {
    const std::optional<int> peer = awaited(given_up);
    if (!peer || Clock::now() >= end) {
      propose();
      continue;
    }
    sleep_on({&segment_->rank_state(*peer).recovery_step, number_ + 1}, kCheckInterval);
    if (state_.aborted()) throw state_.error();
    check_interrupt();
  }
  if (!members->test(size_t(rank_))) {
    fail(abi::ncclRemoteError,
         "%s was excluded: the other ranks continue without it, because it did not take part in "
         "their recovery in time",
         segment_->name_of(rank_).c_str());
  }
  members_ = *members;
  ++number_;
  std::vector<int> excluded;
  for (int rank = 0; rank < segment_->nranks(); ++rank)
    if (!members_.test(size_t(rank))) excluded.push_back(rank);
  return excluded;
}

// The first rank that has not arrived but may still do so.
std::optional<int> Recovery::awaited(const RankSet& lost) const {
  for (int rank = 0; rank < segment_->nranks(); ++rank) {
    const bool expected = members_.test(size_t(rank)) && !lost.test(size_t(rank));
    if (!expected || segment_->rank_state(rank).recovery_step.reached(number_ + 1)) continue;
    if (segment_->is_available(rank)) return rank;
  }
  return std::nullopt;
}

void Recovery::propose() {
  RankSet survivors;
  for (int rank = 0; rank < segment_->nranks(); ++rank) {
    if (members_.test(size_t(rank)) &&
        segment_->rank_state(rank).recovery_step.reached(number_ + 1) &&
        segment_->is_available(rank))
      survivors.set(size_t(rank));
  }
  const uint32_t number = number_ + 1;
  store(segment_->rank_state(rank_).survivors[number & 1], survivors);
  uint64_t last = segment_->recovery().load();
  if (uint32_t(last >> 32) == number_)
    segment_->recovery().compare_exchange_strong(last, uint64_t{number} << 32 | uint32_t(rank_));
  for (int rank = 0; rank < segment_->nranks(); ++rank)
    segment_->rank_state(rank).recovery_step.wake();
}

// The result of this recovery, or of a later one, which excludes this rank.
std::optional<RankSet> Recovery::decided() const {
  for (;;) {
    const uint64_t decision = segment_->recovery().load();
    const uint32_t number = uint32_t(decision >> 32);
    if (number == number_) return std::nullopt;
    const RankSet members =
        load(segment_->rank_state(int(uint32_t(decision))).survivors[number & 1]);
    // Else there was another recovery, and the proposal may have been overwritten.
    if (segment_->recovery().load() == decision) return members;
  }
}

}  // namespace hostnccl
