// Agreement among the ranks of a communicator outside the order of its operations.
//
// Its flags in the RankStates work even after the communicator was revoked and after its segment
// has failed, when no collective can run.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "hostnccl/communicator/comm_state.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class Agreement {
 public:
  explicit Agreement(const CommState& state) : state_(state) {}
  void attach(Segment& segment, int rank);

  // After a recovery, in which ranks may have completed different numbers of agreements: all of its
  // members continue with the same number.
  void restart(uint32_t recovery);

  // Agreements are numbered like operations, by sequence numbers.
  uint32_t take_number() { return ++issued_; }
  // The records of all ranks. Waits for the agreements with lower numbers. Throws if this rank
  // gives up the creation.
  std::vector<ExchangeRecord> exchange_records(const ExchangeRecord& own, uint32_t number,
                                               const Creation& creation);

  // Returns when all ranks have called it equally often. Only suspension uses it.
  void suspension_barrier();

 private:
  void await_all(Flag RankState::* flag, uint32_t target, const Creation* creation) const;
  void check(const Creation& creation, const std::string& awaited) const;

  const CommState& state_;
  Segment* segment_ = nullptr;
  int rank_ = -1;
  std::atomic<uint32_t> issued_{0};
  Flag completed_;
  uint32_t barriers_ = 0;
};

}  // namespace hostnccl
