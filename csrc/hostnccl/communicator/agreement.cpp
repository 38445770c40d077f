#include "hostnccl/communicator/agreement.h"

#include "hostnccl/base/interrupt.h"

namespace hostnccl {

void Agreement::attach(Segment& segment, int rank) {
  segment_ = &segment;
  rank_ = rank;
}

void Agreement::restart(uint32_t recovery) {
  constexpr uint32_t kAgreements = 1 << 16;  // more than occur between two recoveries
  issued_ = recovery * kAgreements;
  completed_.signal(issued_);
}

void Agreement::check(const Creation& creation, const std::string& awaited) const {
  if (state_.aborted()) throw state_.error();
  const auto reason = creation.given_up();
  if (!reason) return;
  throw Error(reason->code(), segment_->name_of(rank_) + " " + reason->text() + ": " + awaited);
}

// Waits until all ranks have signalled the flag: for a creation, outside the order of operations,
// or for the suspension.
void Agreement::await_all(Flag RankState::* flag, uint32_t target, const Creation* creation) const {
  for (int peer = 0; peer < segment_->nranks(); ++peer) {
    const WaitCondition condition{&(segment_->rank_state(peer).*flag), target};
    sleep_until(condition, [&](bool check_liveness) {
      if (creation) {
        check(*creation,
              segment_->name_of(peer) + " did not take part in creating another communicator");
        segment_->check_agreement_peer(peer, condition, check_liveness);
      } else {
        check_interrupt();
        if (state_.aborted() || state_.revoked() || segment_->failed()) throw state_.error();
        segment_->check_owner(peer, condition, check_liveness);
      }
    });
  }
}

std::vector<ExchangeRecord> Agreement::exchange_records(const ExchangeRecord& own, uint32_t number,
                                                        const Creation& creation) {
  const WaitCondition earlier{&completed_, number - 1};
  sleep_until(earlier,
              [&](bool) { check(creation, "an earlier communicator is still being created"); });
  std::vector<ExchangeRecord> all;
  try {
    segment_->rank_state(rank_).records[number & 1] = own;
    segment_->rank_state(rank_).agreement_step.signal(number);
    await_all(&RankState::agreement_step, number, &creation);
    for (int peer = 0; peer < segment_->nranks(); ++peer) {
      all.push_back(segment_->rank_state(peer).records[number & 1]);
    }
  } catch (...) {
    completed_.signal(number);  // the next agreement detects the reason itself
    throw;
  }
  completed_.signal(number);
  return all;
}

void Agreement::suspension_barrier() {
  segment_->rank_state(rank_).suspension_step.signal(++barriers_);
  await_all(&RankState::suspension_step, barriers_, nullptr);
}

}  // namespace hostnccl
