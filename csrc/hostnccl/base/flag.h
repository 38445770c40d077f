// Flag: a monotonic 32-bit futex word. Every wait in the engine waits until a flag reaches a
// target.
//
// A flag lies in shared or private memory and has one writer at a time. signal() makes a system
// call only if a thread sleeps on the flag.
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

  void wake();  // wakes all sleepers, even if the value has not changed

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

// Sleeps until one of the flags changes, for at most about the ceiling. May wake early.
void sleep_on(const WaitCondition* conditions, size_t count, std::chrono::nanoseconds ceiling);

inline void sleep_on(const WaitCondition& condition, std::chrono::nanoseconds ceiling) {
  sleep_on(&condition, 1, ceiling);
}

// The interval at which sleeping ranks check whether their waits can still end.
inline constexpr auto kCheckInterval = std::chrono::milliseconds(50);
inline constexpr int kSleepsPerLivenessCheck = 4;  // a check of a process costs a system call

// Sleeps until the condition is met. After each interval in which it was not, calls check with
// whether the processes of other ranks are to be checked as well. check throws to end the wait.
template <typename Check>
void sleep_until(const WaitCondition& condition, const Check& check) {
  for (int sleeps = 1; !condition.met(); ++sleeps) {
    sleep_on(condition, kCheckInterval);
    if (!condition.met()) check(sleeps % kSleepsPerLivenessCheck == 0);
  }
}

// Whether waits of this process have recently lost time slices to other processes. If ranks share
// CPUs (Segment::competing_ranks()), it may have been a rank that copied for as long.
bool lost_slice_recently();

// Whether waits of this process have lost their CPU in the last second while more threads than
// ranks were ready to run. Only known if ranks share CPUs.
bool others_ran_recently();

// The busy wait before a sleep. It spins and occasionally yields the CPU, more often if ranks are
// oversubscribed. While other processes compete for the CPUs, it only spins if all awaited ranks
// are on other CPUs, and does not wait otherwise.
class SpinBackoff {
 public:
  // ranks: as Segment::competing_ranks() returns it.
  explicit SpinBackoff(int ranks) : ranks_(ranks) {}
  void reset() { waiting_ = false; }

  // Spins once. False if the caller should sleep. Before each check of the time it calls apart(),
  // which tells whether all awaited ranks are on other CPUs.
  template <typename Apart>
  bool wait(const Apart& apart) {
    return spin() || check(apart());
  }
  bool wait() { return spin() || check(false); }

 private:
  bool spin();
  bool check(bool apart);

  int ranks_;
  int spins_ = 0;  // since the last check
  bool waiting_ = false;
  Clock::time_point began_;    // when waiting_ became true
  Clock::time_point checked_;  // the last check, or the end of its yield
};

}  // namespace hostnccl
