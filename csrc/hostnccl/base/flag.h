// Monotonic 32-bit futex flag; every wait in the engine waits for one to reach a target.
//
// A Flag lies in shared or private memory and has one writer at a time. signal() makes a system
// call only if a rank sleeps on the flag.
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
  uint32_t load_own() const { return value_.load(std::memory_order_relaxed); }  // for the writer

  bool reached(uint32_t target) const {
    return static_cast<int32_t>(load() - target) >= 0;  // correct after a wrap-around
  }

  // Both sides are sequentially consistent: either the writer sees the waiter, or the waiter, which
  // reads the value once more before it sleeps, sees the new value. No wake-up is lost.
  void signal(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0) wake();
  }

  void wake();  // all sleepers, whether or not the value has changed

 private:
  friend class Sleep;
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> waiters_{0};
};
static_assert(sizeof(Flag) == 8 && std::atomic<uint32_t>::is_always_lock_free);

// A flag and the value that it must reach.
struct WaitCondition {
  Flag* flag = nullptr;
  uint32_t target = 0;
  bool met() const { return flag->reached(target); }
};

// Sleeps until one of the flags changes, or for about the ceiling. May wake early.
void sleep_on(const WaitCondition* conditions, size_t count, std::chrono::nanoseconds ceiling);

inline void sleep_on(const WaitCondition& condition, std::chrono::nanoseconds ceiling) {
  sleep_on(&condition, 1, ceiling);
}

// Busy-waiting before a sleep: spins and occasionally yields the CPU, more often if ranks are
// oversubscribed, and hardly at all while other processes want the CPUs.
class SpinBackoff {
 public:
  explicit SpinBackoff(bool oversubscribed) : oversubscribed_(oversubscribed) {}
  void reset() { spinning_ = false; }
  bool wait();  // spins once; false when the caller should sleep

 private:
  bool oversubscribed_;  // more ranks than CPUs
  int spins_ = 0;
  bool spinning_ = false;
  Clock::time_point began_;   // of spinning_
  Clock::time_point looked_;  // after the last yield
};

}  // namespace hostnccl
