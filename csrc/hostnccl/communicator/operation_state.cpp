#include "hostnccl/communicator/operation_state.h"

namespace hostnccl {

void CollectiveState::attach(Segment& segment, int rank) {
  // Segment::announce_rank and Segment::probe_peer_memory
  constexpr uint32_t kSetupSteps = 2;
  segment_ = &segment;
  rank_ = rank;
  step_ = kSetupSteps;
  sources_.resize(static_cast<size_t>(segment.nranks()));
  scalars_.resize(static_cast<size_t>(segment.nranks()));
}

void* CollectiveState::scratch(int peer, size_t bytes) {
  if (scratch_.empty()) {
    scratch_.resize(bytes * sources_.size());
    scratch_bytes_ = scratch_.size();
  }
  return scratch_.data() + bytes * static_cast<size_t>(peer);
}

void CollectiveState::release_scratch() {
  std::vector<char>().swap(scratch_);
  scratch_bytes_ = 0;
}

}  // namespace hostnccl
