#include "hostnccl/communicator/agreement.h"

#include "hostnccl/base/interrupt.h"

namespace hostnccl {
namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);
constexpr int kChecksPerLivenessCheck = 4;  // looking at a process costs a system call

}  // namespace

void Agreement::attach(Segment& segment, int rank) {
  segment_ = &segment;
  rank_ = rank;
}

void Agreement::await_all(Flag RankState::* flag, uint32_t target) const {
  const bool outside_operations = flag == &RankState::agreement_step;
  for (int peer = 0; peer < segment_->nranks(); ++peer) {
    const WaitCondition condition{&(segment_->rank_state(peer).*flag), target};
    for (int checks = 1; !condition.met(); ++checks) {
      sleep_on(condition, kCheckInterval);
      if (condition.met()) break;
      check_interrupt();
      const bool check_liveness = checks % kChecksPerLivenessCheck == 0;
      if (state_.aborted()) throw state_.error();
      if (outside_operations) {
        segment_->check_agreement_peer(peer, condition, check_liveness);
      } else {
        if (state_.revoked() || segment_->failed()) throw state_.error();
        segment_->check_owner(peer, condition, check_liveness);
      }
    }
  }
}

std::vector<ExchangeRecord> Agreement::exchange_records(const ExchangeRecord& own,
                                                        uint32_t number) {
  const WaitCondition earlier{&completed_, number - 1};
  while (!earlier.met()) {
    if (state_.aborted()) throw state_.error();
    sleep_on(earlier, kCheckInterval);
    check_interrupt();
  }
  std::vector<ExchangeRecord> all;
  try {
    segment_->rank_state(rank_).records[number & 1] = own;
    segment_->rank_state(rank_).agreement_step.signal(number);
    await_all(&RankState::agreement_step, number);
    for (int peer = 0; peer < segment_->nranks(); ++peer) {
      all.push_back(segment_->rank_state(peer).records[number & 1]);
    }
  } catch (...) {
    completed_.signal(number);  // the next agreement finds the reason itself
    throw;
  }
  completed_.signal(number);
  return all;
}

void Agreement::suspension_barrier() {
  segment_->rank_state(rank_).suspension_step.signal(++barriers_);
  await_all(&RankState::suspension_step, barriers_);
}

}  // namespace hostnccl
