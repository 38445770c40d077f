// Agreement: an exchange of records among the ranks of a communicator, outside the order of its
// operations. It has its own flags in the RankStates, and works even after the communicator was
// revoked or its segment has failed, when no collective can run.
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

  // Called after a recovery, before which ranks may have completed different numbers of agreements.
  // All members continue with the same number.
  void restart(uint32_t recovery);

  // Agreements have sequence numbers, like operations.
  uint32_t take_number() { return ++issued_; }
  // Returns the records of all ranks. Waits for the agreements with lower numbers. Throws if this
  // rank gives up the creation.
  std::vector<ExchangeRecord> exchange_records(const ExchangeRecord& own, uint32_t number,
                                               const Creation& creation);

  // Returns when all ranks have called it equally often. For suspension only.
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
