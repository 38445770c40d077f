#include "hostnccl/counter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

namespace hostnccl {
namespace {

constexpr size_t kMostWords = 128;  // that futex_waitv takes
constexpr auto kBlindSleep = std::chrono::milliseconds(1);

// Declared here because older kernel headers lack it.
struct FutexWord {
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

timespec to_timespec(std::chrono::nanoseconds time) {
  return {static_cast<time_t>(time.count() / 1000000000),
          static_cast<long>(time.count() % 1000000000)};
}

}  // namespace

// Registered as a waiter on every word for its lifetime.
class Sleep {
 public:
  Sleep(const Wanted* wanted, size_t count) : wanted_(wanted), count_(count) {
    for (size_t i = 0; i < count_; ++i) {
      wanted_[i].counter->waiters_.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;
  ~Sleep() {
    for (size_t i = 0; i < count_; ++i) {
      wanted_[i].counter->waiters_.fetch_sub(1, std::memory_order_release);
    }
  }

  void run(std::chrono::nanoseconds ceiling) {
    std::array<FutexWord, kMostWords> words;
    for (size_t i = 0; i < count_; ++i) {
      std::atomic<uint32_t>& value = wanted_[i].counter->value_;
      const uint32_t seen = value.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(seen - wanted_[i].target) >= 0) return;
      words[i] = {seen, reinterpret_cast<uint64_t>(&value), kSize32, 0};
    }
    if (count_ > 1) {
      timespec until;
      clock_gettime(CLOCK_MONOTONIC, &until);
      until = to_timespec(std::chrono::seconds(until.tv_sec) +
                          std::chrono::nanoseconds(until.tv_nsec) + ceiling);
      const long done = syscall(kFutexWaitv, words.data(), count_, 0, &until, CLOCK_MONOTONIC);
      if (done >= 0 || (errno != ENOSYS && errno != EPERM)) return;
      ceiling = std::min<std::chrono::nanoseconds>(ceiling, kBlindSleep);
    }
    const timespec time = to_timespec(ceiling);
    syscall(SYS_futex, words[0].address, FUTEX_WAIT, static_cast<uint32_t>(words[0].value), &time,
            nullptr, 0);
  }

 private:
  const Wanted* wanted_;
  size_t count_;
};

void Counter::wake() { syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void sleep_on(const Wanted* wanted, size_t count, std::chrono::nanoseconds ceiling) {
  if (count > kMostWords) {
    count = kMostWords;
    ceiling = std::min<std::chrono::nanoseconds>(ceiling, kBlindSleep);
  }
  Sleep(wanted, count).run(ceiling);
}

// A yield costs little when nobody else wants the CPU, and all the waiting when the one waited for
// does: other processes may crowd the machine without our knowing.
bool Patience::wait() {
  constexpr uint32_t kSpins = 64;  // between two yields
  constexpr uint32_t kYieldsInCrowd = 3;
  constexpr auto kAwake = std::chrono::microseconds(40);
  const uint32_t round = rounds_++;
  if (round < kSpins || (!crowded_ && round % kSpins != 0)) {
    cpu_relax();
    return true;
  }
  if (crowded_ ? round >= kSpins + kYieldsInCrowd
               : round > kSpins && Clock::now() - began_ > kAwake) {
    return false;
  }
  if (round == kSpins) began_ = Clock::now();
  sched_yield();
  return true;
}

int usable_cpus() {
  static const int count = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0
               ? CPU_COUNT(&set)
               : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }();
  return count;
}

}  // namespace hostnccl
