// Recovery: the ranks of a communicator that are left agree on who they are, before they make
// another one without the others.
//
// A rank proposes those that have come when all others are gone, or when its time is over. The
// first proposal holds for all: a compare-and-swap decides. So no two ranks get different results,
// whichever dies meanwhile, and a rank that is not among them learns it when it comes.
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

  // Returns which ranks are not left, sorted. Waits for those that are neither gone nor in lost, as
  // long as the limit. Throws where the others have gone on without this rank.
  std::vector<int> agree(const std::vector<int>& lost, Limit limit);

  // Of the last one that this rank has agreed in.
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
