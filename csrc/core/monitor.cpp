#include "core/monitor.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/per_process.h"
#include "common/signals_blocked.h"
#include "core/communicator.h"
#include "core/fork_lock.h"

namespace pynccl {
namespace {

constexpr std::int64_t kChecks = 16;  // per limit
constexpr std::int64_t kShortestPause = 5'000'000,
                       kLongestPause = 1'000'000'000;      // ns between two checks
constexpr std::int64_t kInquiring = kChecks * 20'000'000;  // while an Inquiry is open

// May release the last reference.
std::optional<Deadlines::Late> look(std::shared_ptr<Deadlines> deadlines) {
  const ForkLock lock;
  auto late = deadlines->late();
  deadlines.reset();
  return late;
}

}  // namespace

Monitor& Monitor::get() { return common::per_process<Monitor>(); }

void Monitor::add(const std::shared_ptr<Deadlines>& deadlines,
                  std::weak_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({deadlines, std::move(communicator)});
  woken_ = true;
  changed_.notify_one();
  if (std::exchange(running_, true)) return;
  const common::SignalsBlocked blocked;  // inherited by the thread
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

std::vector<std::shared_ptr<Deadlines>> Monitor::deadlines() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Deadlines>> all;
  all.reserve(watched_.size());
  for (const Watched& one : watched_) all.push_back(one.deadlines);
  return all;
}

std::vector<std::shared_ptr<Communicator>> Monitor::communicators() {
  std::vector<std::shared_ptr<Communicator>> all;  // a last reference ends without the lock
  const std::lock_guard lock(mutex_);
  for (const Watched& one : watched_)
    if (auto communicator = one.communicator.lock()) all.push_back(std::move(communicator));
  return all;
}

void Monitor::run() {
  std::unique_lock lock(mutex_);
  for (bool inquires = false;;) {
    std::int64_t limit = inquires ? kInquiring : DeadlineScope::shortest();
    for (const Watched& one : watched_) limit = std::min(limit, one.deadlines->own_limit());
    const std::chrono::nanoseconds pause(
        std::clamp(limit / kChecks, kShortestPause, kLongestPause));
    const auto woken = [&] { return woken_; };
    if (watched_.empty() || limit == FlightRecord::kNoLimit)
      changed_.wait(lock, woken);
    else
      changed_.wait_for(lock, pause, woken);
    woken_ = false;
    std::vector<Watched> watched = watched_;
    lock.unlock();
    inquires = false;
    for (Watched& one : watched) {
      const auto late = look(std::move(one.deadlines));
      if (!late) continue;
      if (const auto communicator = one.communicator.lock())
        inquires |= !communicator->expire(*late);
    }
    lock.lock();
  }
}

}  // namespace pynccl
