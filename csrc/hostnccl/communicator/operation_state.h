// The operations of a communicator on one rank: their order, and the state of the running ones.
// Only the running ProgressEngine uses the latter, and operations run in order, so it needs no
// lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/kernels/reduce.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

// Sequence numbers, the completed flag, and counts of running operations.
//
// Every operation, group and job takes a sequence number when it is issued. It runs when all
// earlier ones are complete, on any stream or thread.
class OperationOrder {
 public:
  // The first of count consecutive sequence numbers.
  uint32_t take_sequence(uint32_t count = 1) { return issued_.fetch_add(count); }
  uint32_t issued() const { return issued_.load(); }
  bool in_flight() const { return issued() != completed_.load(); }

  // Met when all operations before this sequence number are complete.
  WaitCondition before(uint32_t sequence) { return {&completed_, sequence}; }
  bool reached(uint32_t sequence) const { return completed_.reached(sequence); }
  void complete(uint32_t sequence) { completed_.signal(sequence + 1); }

  // The running operations and jobs of this rank. Abort and destroy wait for them.
  void begin_running() { running_.fetch_add(1, std::memory_order_seq_cst); }
  void end_running() { running_.fetch_sub(1, std::memory_order_acq_rel); }
  bool running() const { return running_.load(std::memory_order_seq_cst) != 0; }
  void wait_until_idle() const {
    constexpr auto kPollInterval = std::chrono::milliseconds(1);
    while (running()) std::this_thread::sleep_for(kPollInterval);
  }

 private:
  friend class EnqueueLock;

  std::atomic<uint32_t> issued_{0};
  std::atomic<int> running_{0};
  Flag completed_;
  std::mutex enqueuing_;
};

// Orders sorted by address: threads lock them in the same sequence and cannot deadlock.
using OperationOrders = std::set<OperationOrder*>;

// Held while operations take their sequence numbers and are enqueued on streams. A stream therefore
// gets the operations of a communicator in the order of their numbers, whichever threads issue
// them.
class EnqueueLock {
 public:
  explicit EnqueueLock(OperationOrders orders) : orders_(std::move(orders)) {
    for (OperationOrder* order : orders_) order->enqueuing_.lock();
  }
  EnqueueLock(const EnqueueLock&) = delete;
  EnqueueLock& operator=(const EnqueueLock&) = delete;
  ~EnqueueLock() {
    for (OperationOrder* order : orders_) order->enqueuing_.unlock();
  }

 private:
  const OperationOrders orders_;
};

// State of the running collective: step flags, published calls, staging index, source pointers and
// scratch memory.
class CollectiveState {
 public:
  // Called after the setup of the segment, which takes the first steps.
  void attach(Segment& segment, int rank) {
    segment_ = &segment;
    rank_ = rank;
    step_ = Segment::kSetupSteps;
    sources_.resize(static_cast<size_t>(segment.nranks()));
    scalars_.resize(static_cast<size_t>(segment.nranks()));
  }

  // Steps: every rank counts its steps in its own step flag and waits for those of the others.
  Flag& step_of(int peer) const { return segment_->rank_state(peer).step; }
  uint32_t signal_step() {  // returns the number of the step that this rank has now reached
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

  // A buffer for a copy of a peer's data. bytes is the same in every call.
  void* scratch(int peer, size_t bytes) {
    if (scratch_.empty()) {
      scratch_.resize(bytes * sources_.size());
      scratch_bytes_ = scratch_.size();
    }
    return scratch_.data() + bytes * static_cast<size_t>(peer);
  }
  size_t scratch_bytes() const { return scratch_bytes_; }  // from any thread
  void release_scratch() {
    std::vector<char>().swap(scratch_);
    scratch_bytes_ = 0;
  }

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

// The counts of the signals that this rank has consumed with ncclWaitSignal, per peer and signal.
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
  std::vector<uint32_t> counts_;  // for all peers up to the highest one so far
};

}  // namespace hostnccl
