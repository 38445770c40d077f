// Recovery: the surviving ranks of a communicator agree on the membership before they create
// another one without the others.
//
// A rank proposes the ranks that have arrived, once all others are gone or its time limit has
// expired. The first proposal is binding for all ranks: a compare-and-swap decides. All ranks
// therefore get the same result, whichever rank dies meanwhile. A rank that is not included gets an
// error when it arrives.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "hostnccl/communicator/comm_state.h"
#include "hostnccl/rendezvous/messages.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class Recovery {
 public:
  using Limit = std::chrono::duration<double>;

  explicit Recovery(const CommState& state) : state_(state) {}
  void attach(Segment& segment, int rank);

  // Returns the ranks that did not survive, sorted. Waits up to the limit for ranks that are
  // neither gone nor in lost. Throws if the others continue without this rank.
  std::vector<int> agree(const std::vector<int>& lost, Limit limit);

  // The number of the last recovery in which this rank took part.
  uint32_t number() const { return number_; }

 private:
  std::optional<int> awaited(const RankSet& lost) const;
  void propose();
  std::optional<RankSet> decided() const;

  const CommState& state_;
  Segment* segment_ = nullptr;
  int rank_ = -1;
  RankSet members_;  // after the last recovery
  uint32_t number_ = 0;
};

}  // namespace hostnccl
