#include "hostnccl/communicator/derivations.h"

#include <string>
#include <utility>

#include "hostnccl/base/interrupt.h"

namespace hostnccl {
namespace {

// "0,3"
std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += format("%s%d", text.empty() ? "" : ",", rank);
  return text;
}

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

Derivations::Scope::Scope(Derivations& all, Creation& creation) : all_(all), creation_(creation) {
  const std::lock_guard lock(all_.mutex_);
  all_.running_.push_back(&creation_);
}

Derivations::Scope::~Scope() {
  const std::lock_guard lock(all_.mutex_);
  std::erase(all_.running_, &creation_);
}

bool Derivations::end(Creation::End how) {
  const std::lock_guard lock(mutex_);
  for (Creation* creation : running_) creation->end(how);
  return !running_.empty();
}

RendezvousKey Derivations::shrink_key(const Secret& parent, const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derive_key(parent,
                    format("shrink %u %u %s", recovery_, number, to_text(excluded).c_str()));
}

void Derivations::begin_recovery(uint32_t number) {
  const std::lock_guard lock(mutex_);
  recovery_ = number;
  shrinks_.clear();
}

abi::ncclUniqueId Derivations::make_grow_id() {
  const std::lock_guard lock(mutex_);
  if (grow_key_) {
    fail(abi::ncclInvalidUsage,
         "comm has an id from an earlier ncclCommGetUniqueId: pass it to ncclCommGrow first");
  }
  const abi::ncclUniqueId id = make_unique_id(Purpose::Grow);
  grow_key_ = read_unique_id(id, Purpose::Grow, "uniqueId").key;
  return id;
}

void Derivations::check_grow_id(const RendezvousKey& key) const {
  const std::lock_guard lock(mutex_);
  if (grow_key_ && *grow_key_ == key) return;
  fail(abi::ncclInvalidArgument,
       "uniqueId was not created by ncclCommGetUniqueId for this rank of comm, or has been used");
}

bool Derivations::growing() const {
  const std::lock_guard lock(mutex_);
  return grow_key_.has_value();
}

std::optional<RendezvousKey> Derivations::take_grow_id() {
  const std::lock_guard lock(mutex_);
  return std::exchange(grow_key_, std::nullopt);
}

void Agreement::attach(Segment& segment, int rank) {
  segment_ = &segment;
  rank_ = rank;
}

void Agreement::restart(uint32_t recovery) {
  constexpr uint32_t kAgreements = 1 << 16;  // more than occur between two recoveries
  const std::lock_guard lock(mutex_);
  issued_ = recovery * kAgreements;
  ended_.clear();
  completed_.signal(issued_);
}

void Agreement::check(const WaitCondition& condition, const Creation& creation,
                      const std::string& awaited) const {
  if (state_.aborted()) throw state_.error();
  const auto reason = creation.given_up();
  // This rank may have been preempted since it last looked at the flag.
  if (!reason || condition.met()) return;
  throw Error(reason->code(), segment_->name_of(rank_) + " " + reason->text() + ": " + awaited);
}

void Agreement::check_peer(int peer, uint32_t number) const {
  if (!segment_->rank_state(peer).given_up.contains(mark_of(number))) return;
  fail(abi::ncclRemoteError, "%s gave up creating the communicator",
       segment_->name_of(peer).c_str());
}

std::vector<ExchangeRecord> Agreement::exchange_records(const ExchangeRecord& own, uint32_t number,
                                                        const Creation& creation) {
  try {
    std::vector<ExchangeRecord> all = exchange(own, number, creation);
    complete(number);
    return all;
  } catch (...) {
    give_up(number);
    throw;
  }
}

void Agreement::give_up(uint32_t number) {
  // Before the next agreement, after which the peers do not find this rank's record.
  segment_->rank_state(rank_).given_up.add(mark_of(number));
  complete(number);
}

// A later agreement may have been given up while it waited for this one.
void Agreement::complete(uint32_t number) {
  const std::lock_guard lock(mutex_);
  ended_.insert(number);
  for (;;) {
    const uint32_t next = completed_.load_own() + 1;
    if (ended_.erase(next) == 0) return;
    completed_.signal(next);
  }
}

std::vector<ExchangeRecord> Agreement::exchange(const ExchangeRecord& own, uint32_t number,
                                                const Creation& creation) {
  const WaitCondition earlier{&completed_, number - 1};
  sleep_until(earlier, [&](bool) {
    check(earlier, creation, "an earlier communicator is still being created");
  });
  segment_->rank_state(rank_).records[number % GivenUpCreations::kMarks] = own;
  segment_->rank_state(rank_).agreement_step.signal(number);
  std::vector<ExchangeRecord> all;
  for (int peer = 0; peer < segment_->nranks(); ++peer) {
    const WaitCondition arrived{&segment_->rank_state(peer).agreement_step, number};
    sleep_until(arrived, [&](bool check_liveness) {
      check(arrived, creation,
            segment_->name_of(peer) + " did not take part in creating another communicator");
      // The peer may only be late while another one has died or given up, even after it arrived.
      for (int other = 0; other < segment_->nranks(); ++other) {
        check_peer(other, number);
        const WaitCondition same{&segment_->rank_state(other).agreement_step, number};
        if (!same.met()) segment_->check_agreement_peer(other, rank_, same, check_liveness);
      }
    });
    all.push_back(segment_->rank_state(peer).records[number % GivenUpCreations::kMarks]);
    check_peer(peer, number);
  }
  return all;
}

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
