#include "core/trace_clock.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/clock.h"
#include "core/poll.h"

namespace pynccl {
namespace {

constexpr std::int64_t kBaseInterval = 1'000'000'000;  // a float has 60 ns then
constexpr double kBaseSeconds = 10;                    // for a base, which waits for nothing

}  // namespace

TraceClock::TraceClock(std::shared_ptr<Library> library, int device)
    : library_(std::move(library)),
      device_(device),
      events_(std::make_shared<EventPool>(library_, device, EventPool::Timing::kOn)),
      stream_(library_, device, 0) {
  add_base();
}

// The chain of bases is smooth, and the clock of the process keeps it from drifting away.
void TraceClock::add_base() {
  PooledEvent event = events_->take();
  const std::int64_t began = precise_time();
  event->record(stream_.handle());
  const bool done = poll_until(kBaseSeconds, [&] { return event->query(); });
  const std::int64_t complete = precise_time();
  if (!done) return;
  std::int64_t time = (began + complete) / 2;
  const std::lock_guard lock(mutex_);
  if (!bases_.empty()) {
    const Base& last = bases_.back();
    const double since = last.event->elapsed_seconds(*event);
    time = std::clamp<std::int64_t>(last.time + std::llround(since * 1e9), began, complete);
  }
  bases_.push_back({std::move(event), time, complete});
}

void TraceClock::update() {
  {
    const std::lock_guard lock(mutex_);
    if (!bases_.empty() && precise_time() < bases_.back().complete + kBaseInterval) return;
  }
  add_base();
}

void TraceClock::forget_before(std::int64_t called) {
  const std::lock_guard lock(mutex_);
  while (bases_.size() > 1 && bases_[1].complete <= called) bases_.pop_front();
}

std::int64_t TraceClock::time_of(const Event& event, std::int64_t called) const {
  const std::lock_guard lock(mutex_);
  if (bases_.empty()) return 0;
  const auto later = std::find_if(std::next(bases_.begin()), bases_.end(),
                                  [&](const Base& base) { return base.complete > called; });
  const Base& base = *std::prev(later);
  return base.time + std::llround(base.event->elapsed_seconds(event) * 1e9);
}

}  // namespace pynccl
