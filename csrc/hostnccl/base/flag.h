// The one thing that anybody here ever waits for: a 32-bit word that only goes up reaching a
// target. A Flag lives in shared or private memory; whoever raises it wakes sleepers by futex,
// and pays a system call only when there are any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hostnccl {

using Clock = std::chrono::steady_clock;

class Flag {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  uint32_t load_own() const {
    return value_.load(std::memory_order_relaxed);
  }  // for its only writer

  bool reached(uint32_t target) const {
    return static_cast<int32_t>(load() - target) >= 0;  // right across the wrap
  }

  // Sequentially consistent on both sides: either the writer sees the waiter, or the waiter, which
  // looks at the value once more before it sleeps, sees the value.
  void signal(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0) wake();
  }

  void wake();

 private:
  friend class Sleep;
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> waiters_{0};
};
static_assert(sizeof(Flag) == 8 && std::atomic<uint32_t>::is_always_lock_free);

struct WaitCondition {
  Flag* flag = nullptr;
  uint32_t target = 0;
  bool met() const { return flag->reached(target); }
};

// Sleeps until one of the words has moved, or for about the ceiling; may wake early.
void sleep_on(const WaitCondition* condition, size_t count, std::chrono::nanoseconds ceiling);

inline void sleep_on(const WaitCondition& condition, std::chrono::nanoseconds ceiling) {
  sleep_on(&condition, 1, ceiling);
}

// Sleeps until the word has arrived, however long that takes.
inline void sleep_until(const WaitCondition& condition) {
  while (!condition.met()) sleep_on(condition, std::chrono::seconds(1));
}

// Waiting awake, for a while: spins, and lets others run now and then, sooner when it is
// oversubscribed.
class SpinBackoff {
 public:
  explicit SpinBackoff(bool oversubscribed) : oversubscribed_(oversubscribed) {}
  void reset() { spinning_ = false; }
  bool wait();  // a moment; false when it is time to sleep

 private:
  bool oversubscribed_;  // by more ranks than there are CPUs
  int spins_ = 0;
  bool spinning_ = false;  // since began_
  Clock::time_point began_;
};

}  // namespace hostnccl
