#include "core/monitor.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "core/communicator.h"

namespace pynccl {
namespace {

constexpr std::int64_t kChecks = 16;                                     // per limit
constexpr std::int64_t kShortest = 5'000'000, kLongest = 1'000'000'000;  // ns between two checks

alignas(Monitor) unsigned char memory[sizeof(Monitor)];

// Signals are for the threads of the user.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

// Never destroyed: its thread runs until the process ends. In the child of a fork it begins anew:
// the thread is gone, and may have held the lock.
Monitor& Monitor::get() {
  static Monitor& monitor = [&]() -> Monitor& {
    pthread_atfork(nullptr, nullptr, [] { new (memory) Monitor; });
    return *new (memory) Monitor;
  }();
  return monitor;
}

void Monitor::add(const std::shared_ptr<Deadlines>& deadlines,
                  std::weak_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({deadlines, std::move(communicator)});
  woken_ = true;
  changed_.notify_one();
  if (std::exchange(running_, true)) return;
  const SignalsBlocked blocked;  // inherited by the thread
  std::thread([this] { run(); }).detach();
}

void Monitor::remove(const Deadlines& deadlines) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const Watched& one) { return one.deadlines.get() == &deadlines; });
}

void Monitor::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_one();
}

void Monitor::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::int64_t limit = DeadlineScope::shortest();
    for (const Watched& one : watched_) limit = std::min(limit, one.deadlines->own_limit());
    const std::chrono::nanoseconds pause(std::clamp(limit / kChecks, kShortest, kLongest));
    const auto woken = [&] { return woken_; };
    if (watched_.empty() || limit == FlightRecord::kNoLimit)
      changed_.wait(lock, woken);
    else
      changed_.wait_for(lock, pause, woken);
    woken_ = false;
    const std::vector<Watched> watched = watched_;
    lock.unlock();
    for (const Watched& one : watched) {
      const auto late = one.deadlines->late();
      if (!late) continue;
      if (const auto communicator = one.communicator.lock()) communicator->expire(*late);
    }
    lock.lock();
  }
}

}  // namespace pynccl
