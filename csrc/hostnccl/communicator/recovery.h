// Recovery: the surviving ranks of a communicator agree on the membership before they create
// another one without the others.
//
// A rank proposes the ranks that have arrived, once all others are gone or its time is over. The
// first proposal is binding for all: a compare-and-swap decides. Thus no two ranks get different
// results, whichever rank dies in the meantime, and a rank that is not included learns it when it
// arrives.
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

  // Returns the ranks that did not survive, sorted. Waits, up to the limit, for those that are
  // neither gone nor in lost. Throws if the others have continued without this rank.
  std::vector<int> agree(const std::vector<int>& lost, Limit limit);

  // The number of the last recovery that this rank has agreed in.
  uint32_t number() const { return number_; }

 private:
  std::optional<int> awaited(const RankSet& lost) const;
  void propose();
  std::optional<RankSet> decided() const;

  const CommState& state_;
  Segment* segment_ = nullptr;
  int rank_ = -1;
  RankSet members_;  // by the last agreement
  uint32_t number_ = 0;
};

}  // namespace hostnccl
