#include "hostnccl/base/flag.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <limits>
#include <utility>

#include "hostnccl/base/process.h"
#include "hostnccl/base/tuning.h"

namespace hostnccl {
namespace {

constexpr size_t kMaxFlags = 128;  // in one call of futex_waitv
// Upper bound of a sleep on only some of the flags.
constexpr auto kPartialSleep = std::chrono::milliseconds(1);

// struct futex_waitv of linux/futex.h, which older kernel headers lack.
struct FutexWaiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint32_t kSize32 = 2;
constexpr long kFutexWaitv = 449;

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Time slices that waits of this process have lost to other processes.
class LostSlices {
 public:
  // Whether a slice was lost recently.
  bool recent(Clock::time_point now) const {
    return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
  }

  // Whether more threads than ranks were ready to run in a period that ended since a time.
  bool others_seen_since(Clock::time_point time) const {
    return others_.load(std::memory_order_relaxed) >= time.time_since_epoch().count();
  }

  // Records a period in which a thread only spun or yielded. In a long one, other threads had its
  // CPU, which counts as recent for 8 times the period, because detecting it again costs as much,
  // and for up to twice the last such time if it happens again soon after. A process that was
  // stopped has not lost its CPU to others, hence the limit.
  //
  // ranks: the number of ranks that compete with each other for the CPUs, or 0. One of them may
  // copy for as long. It was another process if more threads than ranks are ready to run, which is
  // rarely so while ranks sleep, or if the period was at least half of a usual time slice.
  void note(Clock::time_point begin, Clock::time_point end, int ranks) {
    constexpr auto kLong = std::chrono::microseconds(200);  // far longer than a sleep and wake-up
    constexpr auto kSlice = std::chrono::microseconds(2500);
    constexpr Clock::duration kMemory = std::chrono::seconds(10);
    constexpr Clock::duration kMost = std::chrono::milliseconds(300);
    constexpr int kFirst = 8;
    constexpr Clock::duration kMostFirst = std::chrono::seconds(1);
    if (end - begin < kLong) return;
    if (ranks > 0) {
      const Clock::rep now = end.time_since_epoch().count();
      if (runnable_threads().value_or(0) > ranks) others_.store(now, std::memory_order_relaxed);
      if (end - begin < kSlice && !others_seen_since(end - kMemory)) return;
    }
    const Clock::rep first = std::min(kFirst * (end - begin), kMostFirst).count();
    const Clock::rep last = time_.load(std::memory_order_relaxed);
    const Clock::rep calm =
        begin.time_since_epoch().count() - until_.load(std::memory_order_relaxed);
    const Clock::rep time =
        calm > last ? first : std::max(first, std::min(2 * last, kMost.count()));
    time_.store(time, std::memory_order_relaxed);
    until_.store(end.time_since_epoch().count() + time, std::memory_order_relaxed);
  }

 private:
  std::atomic<Clock::rep> until_{0};  // in the ticks of Clock
  std::atomic<Clock::rep> time_{0};   // the length of the last period before it
  std::atomic<Clock::rep> others_{std::numeric_limits<Clock::rep>::min() / 2};  // last seen
};

LostSlices lost_slices;

// struct sched_attr of linux/sched/types.h, which some C libraries define as well.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // ns. The time slice, except of a deadline thread.
  uint64_t deadline;
  uint64_t period;
};

// Requests the shortest time slice for this thread, which Linux allows from 6.12 on. A thread that
// wakes then preempts one with a longer slice at once, instead of waiting for the end of that
// slice. Its share of the CPU remains the same.
void shorten_slice() {
  thread_local bool done = false;
  if (std::exchange(done, true)) return;
  constexpr uint64_t kShortestSlice = 100'000;
  SchedulingAttributes now{};
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0) return;
  const bool fair = now.policy == SCHED_OTHER || now.policy == SCHED_BATCH;
  if (!fair || now.runtime <= kShortestSlice) return;  // 0 before Linux 6.12
  now.runtime = kShortestSlice;
  syscall(SYS_sched_setattr, 0, &now, 0);
}

// Spins before each check of the time. 0: waits of this thread begin with a check.
constexpr int kSpinsPerCheck = 64;
constexpr int kSpinsPerCheckOversubscribed = 4;
thread_local int spins_per_check = kSpinsPerCheck;

timespec to_timespec(std::chrono::nanoseconds time) {
  return {static_cast<time_t>(time.count() / 1000000000),
          static_cast<long>(time.count() % 1000000000)};
}

}  // namespace

// One sleep on several flags. It counts as a waiter on each of them during its lifetime.
class Sleep {
 public:
  Sleep(const WaitCondition* conditions, size_t count) : conditions_(conditions), count_(count) {
    for (size_t i = 0; i < count_; ++i) {
      conditions_[i].flag->waiters_.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;
  ~Sleep() {
    for (size_t i = 0; i < count_; ++i) {
      conditions_[i].flag->waiters_.fetch_sub(1, std::memory_order_release);
    }
  }

  void run(std::chrono::nanoseconds ceiling) {
    std::array<FutexWaiter, kMaxFlags> waiters;
    for (size_t i = 0; i < count_; ++i) {
      std::atomic<uint32_t>& value = conditions_[i].flag->value_;
      const uint32_t seen = value.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(seen - conditions_[i].target) >= 0) return;
      waiters[i] = {seen, reinterpret_cast<uint64_t>(&value), kSize32, 0};
    }
    if (count_ > 1) {
      timespec until;
      clock_gettime(CLOCK_MONOTONIC, &until);
      until = to_timespec(std::chrono::seconds(until.tv_sec) +
                          std::chrono::nanoseconds(until.tv_nsec) + ceiling);
      const long done = syscall(kFutexWaitv, waiters.data(), count_, 0, &until, CLOCK_MONOTONIC);
      if (done >= 0 || (errno != ENOSYS && errno != EPERM)) return;
      ceiling = std::min<std::chrono::nanoseconds>(ceiling, kPartialSleep);
    }
    const timespec time = to_timespec(ceiling);
    syscall(SYS_futex, waiters[0].address, FUTEX_WAIT, static_cast<uint32_t>(waiters[0].value),
            &time, nullptr, 0);
  }

 private:
  const WaitCondition* conditions_;
  size_t count_;
};

bool lost_slice_recently() { return lost_slices.recent(Clock::now()); }

bool others_ran_recently() {
  constexpr std::chrono::seconds kRecent(1);
  return lost_slices.others_seen_since(Clock::now() - kRecent);
}

void Flag::wake() { syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void sleep_on(const WaitCondition* conditions, size_t count, std::chrono::nanoseconds ceiling) {
  if (count > kMaxFlags) {
    count = kMaxFlags;
    ceiling = std::min<std::chrono::nanoseconds>(ceiling, kPartialSleep);
  }
  Sleep(conditions, count).run(ceiling);
}

bool SpinBackoff::spin() {
  if (spins_ >= spins_per_check) return false;
  ++spins_;
  cpu_relax();
  return true;
}

// A yield is cheap if no other thread is ready to run. After a longer one with oversubscribed
// ranks, the thread that ran was probably a rank that this one waits for, so it yields sooner from
// then on. A yield as long as a time slice shows that other processes compete for the CPUs. A sleep
// then costs far less, because it ends as soon as the condition is met.
//
// Meanwhile, ranks on CPUs of their own spin briefly, but do not yield: while they run at the same
// time, none of them needs a sleep.
bool SpinBackoff::check(bool apart) {
  constexpr std::chrono::microseconds kSpinTimeApart(50);  // a few sleeps and wake-ups
  constexpr std::chrono::microseconds kOtherThreadRan(1);
  spins_ = 0;
  shorten_slice();
  const Clock::time_point now = Clock::now();
  if (!waiting_) {
    waiting_ = true;
    began_ = now;
  } else {
    lost_slices.note(checked_, now, ranks_);
  }
  checked_ = now;
  const Clock::duration waited = now - began_;
  if (lost_slices.recent(now)) {
    spins_per_check = apart || ranks_ > 0 ? kSpinsPerCheck : 0;
    return apart && ranks_ == 0 && waited < std::min(kSpinTimeApart, spin_time());
  }
  if (waited >= spin_time()) return false;
  sched_yield();
  checked_ = Clock::now();
  lost_slices.note(now, checked_, ranks_);
  const bool other_ran = ranks_ > 0 && checked_ - now > kOtherThreadRan;
  spins_per_check = other_ran ? kSpinsPerCheckOversubscribed : kSpinsPerCheck;
  return true;
}

}  // namespace hostnccl
