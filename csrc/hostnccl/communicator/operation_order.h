// OperationOrder: the order of one communicator's operations on this rank, with sequence numbers,
// the completed flag, and counts of running operations.
//
// Every operation, group and job takes a sequence number when it is issued. It runs when all
// earlier ones are complete, on any stream or thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "hostnccl/base/flag.h"

namespace hostnccl {

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

  // Background jobs of a non-blocking communicator: ncclCommGetAsyncError reports ncclInProgress
  // while one runs.
  void begin_background() { background_.fetch_add(1, std::memory_order_acq_rel); }
  void end_background() { background_.fetch_sub(1, std::memory_order_acq_rel); }
  bool in_background() const { return background_.load(std::memory_order_acquire) != 0; }

 private:
  friend class EnqueueLock;

  std::atomic<uint32_t> issued_{0};
  std::atomic<int> running_{0};
  std::atomic<int> background_{0};
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

}  // namespace hostnccl
