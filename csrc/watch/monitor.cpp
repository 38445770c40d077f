#include "watch/monitor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/communicator.h"
#include "comm/observer.h"
#include "common/per_process.h"
#include "common/signals_blocked.h"
#include "nccl/clock.h"
#include "nccl/fork_lock.h"

namespace pynccl {
namespace {

constexpr std::int64_t kChecks = 16;  // per limit
constexpr std::int64_t kShortestPause = 5'000'000,
                       kLongestPause = 1'000'000'000;      // ns between two checks
constexpr std::int64_t kInquiring = kChecks * 20'000'000;  // while an Inquiry is open
constexpr std::chrono::seconds kAnswer(1);  // after which a GPU driver counts as silent

// The shortest limit of a communicator; none without communicators.
std::optional<std::int64_t> shortest_limit() {
  const ForkLock lock;  // the last references to deadlines may be released here
  std::optional<std::int64_t> limit;
  for (const OpenCommunicators::Entry& one : OpenCommunicators::all()) {
    const std::int64_t own = one.deadlines->own_limit();
    limit = std::min(limit.value_or(own), own);
  }
  return limit;
}

// Takes deadlines by value to release them, possibly the last reference, under the lock.
std::optional<Deadlines::Late> late_operation(std::shared_ptr<Deadlines> deadlines) {
  const ForkLock lock;
  if (!deadlines->on_gpu()) deadlines->update();
  auto late = deadlines->late();
  deadlines.reset();
  return late;
}

}  // namespace

void Monitor::DriverPoller::poll(const std::vector<OpenCommunicators::Entry>& all) {
  std::unique_lock lock(mutex_);
  if (began_ == 0) {
    for (const auto& one : all)
      if (one.deadlines->on_gpu()) pending_.push_back(one.deadlines);
    if (pending_.empty()) return;
    began_ = coarse_time();
    if (!std::exchange(running_, true)) std::thread([this] { run(); }).detach();
    changed_.notify_all();
    changed_.wait_for(lock, kAnswer, [this] { return began_ == 0; });
  }
  Deadlines::set_silent_since(began_);
}

void Monitor::DriverPoller::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !pending_.empty(); });
    std::vector<std::shared_ptr<Deadlines>> pending = std::exchange(pending_, {});
    lock.unlock();
    for (auto& deadlines : pending) {
      const ForkLock fork_lock;
      deadlines->update();
      deadlines.reset();
    }
    lock.lock();
    began_ = 0;
    Deadlines::set_silent_since(0);
    changed_.notify_all();
  }
}

// A forked child does not inherit the monitor's thread, and gets a new Monitor.
class Monitor::Sink final : public Observer {
 public:
  void created(Communicator&) override { common::per_process<Monitor>().start(); }
  void deadlines_changed() override { common::per_process<Monitor>().wake(); }
};

void Monitor::observe() { Observers::add(*new Sink); }

void Monitor::start() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_one();
  if (std::exchange(running_, true)) return;
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread([this] { run(); }).detach();
}

void Monitor::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_one();
}

// Expires a communicator. Returns false if an inquiry must end first.
bool Monitor::expire(Communicator& communicator, const Deadlines::Late& late,
                     std::shared_ptr<Inquiry>& inquiry) noexcept {
  if (communicator.expired()) return true;
  try {
    Inquiry::Answer answer;
    if (communicator.inquires()) {
      if (!inquiry || !inquiry->is_about(late)) {
        inquiry = std::make_shared<Inquiry>(communicator.shared_from_this(), late);
        Inquiry::ask(inquiry);
      }
      const auto result = inquiry->result();
      if (!result) return false;
      answer = *result;
    }
    communicator.expire(late, answer.text, answer.missing);
  } catch (const std::exception&) {  // NCCL calls that still return throw the expiry
  }
  return true;
}

void Monitor::run() {
  Inquiries open;
  for (bool inquires = false;;) {
    std::int64_t limit = inquires ? kInquiring : DeadlineScope::shortest();
    const std::optional<std::int64_t> own = shortest_limit();
    limit = std::min(limit, own.value_or(FlightRecord::kNoLimit));
    const std::chrono::nanoseconds pause(
        std::clamp(limit / kChecks, kShortestPause, kLongestPause));
    {
      std::unique_lock lock(mutex_);
      const auto woken = [&] { return woken_; };
      if (!own || limit == FlightRecord::kNoLimit)
        changed_.wait(lock, woken);
      else
        changed_.wait_for(lock, pause, woken);
      woken_ = false;
    }
    inquires = false;
    Inquiries still_open;
    std::vector<OpenCommunicators::Entry> all = OpenCommunicators::all();
    poller_.poll(all);
    for (OpenCommunicators::Entry& one : all) {
      const auto late = late_operation(std::move(one.deadlines));
      if (!late) continue;
      const auto communicator = one.communicator.lock();
      if (!communicator) continue;
      std::shared_ptr<Inquiry>& inquiry = open[communicator.get()];
      if (expire(*communicator, *late, inquiry)) continue;
      inquires = true;
      still_open[communicator.get()] = inquiry;
    }
    open = std::move(still_open);
  }
}

}  // namespace pynccl
