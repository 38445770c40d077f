// State of the running collective on one rank: step flags, published calls, staging index, source
// pointers and scratch memory.
//
// Only the running ProgressEngine uses it, and operations run in order, so it needs no lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/kernels/reduce.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class CollectiveState {
 public:
  // After the initialisation of the segment, which takes the steps 1 and 2.
  void attach(Segment& segment, int rank);

  // Steps: every rank counts its steps in its own step flag and waits for those of the others.
  Flag& step_of(int peer) const { return segment_->rank_state(peer).step; }
  uint32_t signal_step() {  // the number of the step that this rank has now reached
    step_of(rank_).signal(++step_);
    return step_;
  }

  // The two descriptors and staging buffers of a rank are used alternately: see rank_state.h.
  void next_staging() { ++staging_; }
  Descriptor& own_descriptor() const { return descriptor_of(rank_); }
  Descriptor& descriptor_of(int peer) const {
    return segment_->rank_state(peer).descriptors[staging_index()];
  }
  unsigned char* staging_of(int peer) const {
    return segment_->rank_state(peer).staging_buffers[staging_index()];
  }

  // Arguments of reduce(): one entry per rank.
  const void** sources() { return sources_.data(); }
  Scalar* scalars() { return scalars_.data(); }

  // A buffer for a copy of a peer's data; bytes is the same in every call.
  void* scratch(int peer, size_t bytes);
  size_t scratch_bytes() const { return scratch_bytes_; }  // from any thread
  void release_scratch();

 private:
  uint32_t staging_index() const { return staging_ & 1; }

  Segment* segment_ = nullptr;
  int rank_ = -1;
  uint32_t staging_ = 0;
  uint32_t step_ = 0;
  std::vector<const void*> sources_;
  std::vector<Scalar> scalars_;
  std::vector<char> scratch_;
  std::atomic<size_t> scratch_bytes_{0};
};

}  // namespace hostnccl
