// TraceClock: converts the times of a device's events to nanoseconds of precise_time(). A driver
// returns the time between two events as a float in milliseconds, which loses precision over long
// times. Therefore events are compared with bases, recent events of known time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/stream.h"

namespace pynccl {

class TraceClock {
 public:
  // Takes the first base, and waits for it. A device that is busy for long has one later.
  TraceClock(std::shared_ptr<Library> library, int device);

  const Library& library() const { return *library_; }
  int device() const { return device_; }
  PooledEvent acquire() const { return events_->acquire(); }

  // Whether the current trace has events of the device. The first use() takes a base if the last
  // one is old, and drops those of earlier traces. A new clock is in use.
  void use();
  bool in_use() const { return in_use_.load(std::memory_order_relaxed); }
  void end_use() { in_use_.store(false, std::memory_order_relaxed); }

  // Takes another base if the last one is old, unless another thread does.
  void update();
  // Whether time_of() can be called.
  bool has_base() const;
  // Drops the bases that no event of a call at or after this time needs.
  void forget_before(std::int64_t called);
  // The time at which a completed event, recorded after the given time, was reached.
  std::int64_t time_of(const Event& event, std::int64_t called) const;

 private:
  struct Base {
    PooledEvent event;
    std::int64_t time;      // of the event
    std::int64_t complete;  // the time at which it was seen complete
  };

  std::optional<Base> take_base() const;
  void add_base();

  const std::shared_ptr<Library> library_;
  const int device_;
  const std::shared_ptr<EventPool> events_;
  std::optional<Stream> stream_;  // none if events on the null stream complete at once
  std::atomic<bool> in_use_ = true;
  std::mutex updating_;
  mutable std::mutex mutex_;  // of bases_
  std::deque<Base> bases_;    // oldest first
};

}  // namespace pynccl
