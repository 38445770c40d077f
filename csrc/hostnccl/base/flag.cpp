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

// Contention with other processes for the CPUs. Until contended_until, the waits of this process
// sleep at once. contended_for is the length of the last such period. Both in the ticks of Clock.
std::atomic<Clock::rep> contended_until{0};
std::atomic<Clock::rep> contended_for{0};

bool is_contended(Clock::time_point now) {
  return now.time_since_epoch().count() < contended_until.load(std::memory_order_relaxed);
}

// Records a period in which the thread only spun or yielded. If it exceeds a time slice, another
// process had the CPU. Detecting that again costs another slice, so the waits sleep at once for 8
// times the period, and for up to twice the last such time if it happens again soon after.
void note_busy_wait(Clock::time_point begin, Clock::time_point end, bool oversubscribed) {
  // Far longer than a sleep and its wake-up. Oversubscribed ranks may copy for longer than that.
  const Clock::duration slice = std::chrono::microseconds(oversubscribed ? 2500 : 200);
  constexpr Clock::duration kMost = std::chrono::milliseconds(100);
  constexpr int kFirst = 8;
  if (end - begin < slice) return;
  const Clock::rep first = kFirst * (end - begin).count();
  const Clock::rep last = contended_for.load(std::memory_order_relaxed);
  const Clock::rep calm =
      begin.time_since_epoch().count() - contended_until.load(std::memory_order_relaxed);
  const Clock::rep time = calm > last ? first : std::max(first, std::min(2 * last, kMost.count()));
  contended_for.store(time, std::memory_order_relaxed);
  contended_until.store(end.time_since_epoch().count() + time, std::memory_order_relaxed);
}

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

bool cpus_contended() { return is_contended(Clock::now()); }

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
//
// It begins without a spin, because the scheduler often wakes a rank on the CPU of the rank that
// signals it. There, the awaited rank runs only once this one sleeps. A few waits spin
// nevertheless: if the ranks have CPUs of their own again, the condition is met meanwhile, and the
// next waits spin as well.
bool SpinBackoff::wait() {
  constexpr int kSpins = 64;  // between two yields
  constexpr int kSpinsOversubscribed = 4;
  constexpr unsigned kSleepsPerSpin = 16;  // while other processes compete for the CPUs
  constexpr auto kOtherThreadRan = std::chrono::microseconds(1);
  thread_local int spins = kSpins;
  thread_local unsigned sleeps = 0;
  thread_local bool sleeps_at_once = false;
  if (!sleeps_at_once && spins_ < spins) {
    ++spins_;
    cpu_relax();
    return true;
  }
  spins_ = 0;
  const Clock::time_point now = Clock::now();
  if (!spinning_) {
    spinning_ = true;
    began_ = now;
  } else {
    note_busy_wait(yielded_, now, oversubscribed_);
  }
  if (is_contended(now)) {
    sleeps_at_once = ++sleeps % kSleepsPerSpin != 0;
    return false;
  }
  if (now - began_ >= spin_time()) return false;
  if (sleeps_at_once) {  // the other processes no longer compete
    sleeps_at_once = false;
    yielded_ = now;
    return true;
  }
  sched_yield();
  yielded_ = Clock::now();
  note_busy_wait(now, yielded_, oversubscribed_);
  spins = oversubscribed_ && yielded_ - now > kOtherThreadRan ? kSpinsOversubscribed : kSpins;
  return true;
}

}  // namespace hostnccl
