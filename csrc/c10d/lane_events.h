// LaneEvents: a pool of events that mark the end of a lane's asynchronous operations. An operation
// takes an event, and its Work returns it.
#pragma once

#include <c10/core/Event.h>

#include <memory>
#include <mutex>
#include <vector>

namespace pynccl::dist {

class LaneEvents {
 public:
  explicit LaneEvents(c10::DeviceType device) : device_(device) {}

  // The event may have been recorded before.
  c10::Event acquire() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) return c10::Event(device_);
    c10::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void release(c10::Event event) {
    const std::scoped_lock lock(mutex_);
    if (free_.size() < kMost) free_.push_back(std::move(event));
  }

 private:
  static constexpr std::size_t kMost = 64;

  const c10::DeviceType device_;
  std::mutex mutex_;
  std::vector<c10::Event> free_;
};

// An event of the pool. The destructor returns it.
class LaneEvent {
 public:
  explicit LaneEvent(std::shared_ptr<LaneEvents> events)
      : events_(std::move(events)), event_(events_->acquire()) {}
  LaneEvent(LaneEvent&&) = default;
  LaneEvent& operator=(LaneEvent&&) = delete;
  ~LaneEvent() {
    if (events_) events_->release(std::move(event_));
  }

  c10::Event* operator->() { return &event_; }
  const c10::Event* operator->() const { return &event_; }

 private:
  std::shared_ptr<LaneEvents> events_;
  c10::Event event_;
};

}  // namespace pynccl::dist
