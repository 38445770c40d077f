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

  // Records a period in which a thread only spun or yielded. If it exceeds a time slice, another
  // process had the CPU. Detecting that again costs another slice, so it counts as recent for 8
  // times the period, and for up to twice the last such time if it happens again soon after.
  void note(Clock::time_point begin, Clock::time_point end, bool oversubscribed) {
    // Far longer than a sleep and its wake-up. Oversubscribed ranks may copy for longer than that.
    const Clock::duration slice = std::chrono::microseconds(oversubscribed ? 2500 : 200);
    constexpr Clock::duration kMost = std::chrono::milliseconds(100);
    constexpr int kFirst = 8;
    if (end - begin < slice) return;
    const Clock::rep first = kFirst * (end - begin).count();
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
};

LostSlices lost;            // by spins and yields: other processes compete for the CPUs
LostSlices lost_by_yields;  // a process of others is ready on this CPU

constexpr int kSpinsPerYield = 64;  // between two yields
constexpr int kSpinsPerYieldOversubscribed = 4;
thread_local int spins_per_yield = kSpinsPerYield;

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

bool cpus_contended() { return lost.recent(Clock::now()); }

void Flag::wake() { syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void sleep_on(const WaitCondition* conditions, size_t count, std::chrono::nanoseconds ceiling) {
  if (count > kMaxFlags) {
    count = kMaxFlags;
    ceiling = std::min<std::chrono::nanoseconds>(ceiling, kPartialSleep);
  }
  Sleep(conditions, count).run(ceiling);
}

// A yield is cheap if no other thread is ready to run. After a longer one with oversubscribed
// ranks, the thread that ran was probably a rank that this one waits for, so it yields sooner from
// then on. A yield as long as a time slice shows that other processes compete for the CPUs. A sleep
// then costs far less, because it ends as soon as the condition is met.
SpinBackoff::Next SpinBackoff::step() {
  constexpr auto kSpinTimeApart = std::chrono::microseconds(50);  // a few sleeps and wake-ups
  thread_local bool contended = false;                            // in the last step
  if (spins_ < spins_per_yield && (apart_ || !contended)) {
    ++spins_;
    cpu_relax();
    return Next::Spin;
  }
  spins_ = 0;
  const Clock::time_point now = Clock::now();
  if (!spinning_) {
    spinning_ = true;
    began_ = now;
  } else {
    lost.note(yielded_, now, oversubscribed_);
  }
  yielded_ = now;
  contended = lost.recent(now);
  if (contended) {
    if (!apart_) return Next::Contended;
    return now - began_ < kSpinTimeApart ? Next::Spin : Next::Sleep;
  }
  if (now - began_ >= spin_time()) return Next::Sleep;
  yield(now);
  return Next::Spin;
}

// Ranks on CPUs of their own spin briefly, but do not yield: while they run at the same time, none
// of them needs a sleep. A rank on the CPU of this thread runs only once this thread yields or
// sleeps. A yield costs less, unless it lets a process of others run.
bool SpinBackoff::spin_contended(Placement placement) {
  if (oversubscribed_) return false;
  apart_ = placement == Placement::Apart;
  if (apart_) return true;
  if (placement == Placement::Unknown || lost_by_yields.recent(yielded_)) return false;
  if (yielded_ - began_ >= spin_time()) return false;
  yield(yielded_);
  return true;
}

void SpinBackoff::yield(Clock::time_point now) {
  constexpr auto kOtherThreadRan = std::chrono::microseconds(1);
  sched_yield();
  yielded_ = Clock::now();
  lost.note(now, yielded_, oversubscribed_);
  lost_by_yields.note(now, yielded_, oversubscribed_);
  const bool other_ran = oversubscribed_ && yielded_ - now > kOtherThreadRan;
  spins_per_yield = other_ran ? kSpinsPerYieldOversubscribed : kSpinsPerYield;
}

}  // namespace hostnccl
