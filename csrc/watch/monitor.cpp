#include "watch/monitor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/communicator.h"
#include "comm/observer.h"
#include "comm/open_communicators.h"
#include "common/per_process.h"
#include "common/signals_blocked.h"
#include "nccl/fork_lock.h"

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

// Its thread ends with a fork; the child has another one.
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

// False where an inquiry has to end first.
bool Monitor::expire(Communicator& communicator, const Deadlines::Late& late,
                     std::shared_ptr<Inquiry>& inquiry) noexcept {
  if (communicator.expired()) return true;
  try {
    Inquiry::Answer answer;
    if (communicator.inquires()) {
      if (!inquiry || !inquiry->is_about(late)) {
        inquiry = std::make_shared<Inquiry>(communicator.weak_from_this(), late);
        Inquiry::ask(inquiry);
      }
      const auto result = inquiry->result();
      if (!result) return false;
      answer = *result;
    }
    communicator.expire(late, answer.text, answer.missing);
  } catch (const std::exception&) {  // the calls of NCCL that still return throw the expiry
  }
  return true;
}

void Monitor::run() {
  Inquiries open;
  for (bool inquires = false;;) {
    std::int64_t limit = inquires ? kInquiring : DeadlineScope::shortest();
    const std::optional<std::int64_t> own = OpenCommunicators::shortest_limit();
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
    for (OpenCommunicators::One& one : OpenCommunicators::all()) {
      const auto late = look(std::move(one.deadlines));
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
