// TraceClock: turns the times of a device's events into nanoseconds of precise_time(). A driver
// gives the time between two events as a float in milliseconds, so events are compared with recent
// ones whose time is known.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/event_pool.h"
#include "comm/stream.h"

namespace pynccl {

class TraceClock {
 public:
  // Takes a first base, for which it waits.
  TraceClock(std::shared_ptr<Library> library, int device);

  const Library& library() const { return *library_; }
  int device() const { return device_; }
  PooledEvent take() const { return events_->take(); }

  // Takes another base where the last one is old. One thread at a time.
  void update();
  // Forgets the bases that no event needs whose call was not before this time.
  void forget_before(std::int64_t called);
  // When an event was reached that was recorded after this time; it is done.
  std::int64_t time_of(const Event& event, std::int64_t called) const;

 private:
  struct Base {
    PooledEvent event;
    std::int64_t time;      // of the event
    std::int64_t complete;  // it was done at this time
  };

  std::optional<Base> take_base() const;
  void add_base();

  const std::shared_ptr<Library> library_;
  const int device_;
  const std::shared_ptr<EventPool> events_;
  std::optional<Stream> stream_;  // none where events on the null stream are done at once
  mutable std::mutex mutex_;      // of bases_
  std::deque<Base> bases_;        // oldest first
};

}  // namespace pynccl
