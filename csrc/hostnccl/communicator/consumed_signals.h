// Counts of the signals that this rank has consumed with ncclWaitSignal, per peer and signal index.
//
// Only the running ProgressEngine uses it, and operations run in order, so it needs no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

class ConsumedSignals {
 public:
  explicit ConsumedSignals(const SignalRange& range)
      : per_peer_(size_t{range.contexts} * range.per_context) {}

  uint32_t& count(int peer, uint32_t signal) {
    const size_t first = per_peer_ * static_cast<size_t>(peer);
    if (counts_.size() < first + per_peer_) counts_.resize(first + per_peer_);
    return counts_[first + signal];
  }

 private:
  size_t per_peer_;
  std::vector<uint32_t> counts_;  // grows with the highest peer that was waited for
};

}  // namespace hostnccl
