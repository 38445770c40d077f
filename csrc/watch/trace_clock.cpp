#include "watch/trace_clock.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "nccl/clock.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

constexpr std::int64_t kBaseInterval = 1'000'000'000;  // a float then resolves 60 ns
constexpr double kBaseSeconds = 1;                     // the longest wait for a base
constexpr int kTries = 5;                              // per base, of which the best is used

}  // namespace

TraceClock::TraceClock(std::shared_ptr<Library> library, int device)
    : library_(std::move(library)),
      device_(device),
      events_(std::make_shared<EventPool>(library_, device, true)) {
  if (library_->memory() == Memory::kDevice) stream_.emplace(library_, device, 0);
  add_base();
}

// A base from an event that was reached between two times.
std::optional<TraceClock::Base> TraceClock::take_base() const {
  Base base{events_->acquire(), precise_time(), 0};
  base.event->record(stream_ ? stream_->handle() : nullptr);
  if (!poll_until(kBaseSeconds, [&] { return base.event->query(); })) return std::nullopt;
  base.complete = precise_time();
  return base;
}

// The time of a base follows from the previous base. The process's clock bounds the drift.
void TraceClock::add_base() {
  std::optional<Base> best;
  for (int i = 0; i < kTries; ++i) {
    std::optional<Base> base = take_base();
    if (!base) break;
    if (!best || base->complete - base->time < best->complete - best->time)
      best.emplace(std::move(*base));
  }
  if (!best) return;
  const std::int64_t began = best->time;
  const std::lock_guard lock(mutex_);
  best->time += (best->complete - began) / 2;
  if (!bases_.empty()) {
    const Base& last = bases_.back();
    const double since = last.event->elapsed_seconds(*best->event);
    best->time =
        std::clamp<std::int64_t>(last.time + std::llround(since * 1e9), began, best->complete);
  }
  bases_.push_back(std::move(*best));
}

void TraceClock::use() {
  if (in_use() || in_use_.exchange(true)) return;
  const RelaxedMode relaxed(*library_);
  update();
  forget_before(std::numeric_limits<std::int64_t>::max());
}

void TraceClock::update() {
  const std::unique_lock updating(updating_, std::try_to_lock);
  if (!updating) return;
  {
    const std::lock_guard lock(mutex_);
    if (!bases_.empty() && precise_time() < bases_.back().complete + kBaseInterval) return;
  }
  add_base();
}

bool TraceClock::has_base() const {
  const std::lock_guard lock(mutex_);
  return !bases_.empty();
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
