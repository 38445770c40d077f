// EventPool: reuses CUDA events. An operation takes one and returns it when it is done.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/stream.h"

namespace pynccl {

class EventPool;

// An event of a pool, which the destructor returns to it. It keeps the pool alive.
class PooledEvent {
 public:
  PooledEvent(std::shared_ptr<EventPool> pool, std::unique_ptr<Event> event)
      : pool_(std::move(pool)), event_(std::move(event)) {}
  PooledEvent(PooledEvent&&) = default;
  PooledEvent& operator=(PooledEvent&&) = delete;
  ~PooledEvent();

  const Event& operator*() const { return *event_; }
  const Event* operator->() const { return event_.get(); }

 private:
  std::shared_ptr<EventPool> pool_;
  std::unique_ptr<Event> event_;
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  enum class Timing { kOff, kOn };

  EventPool(std::shared_ptr<Library> library, int device, Timing timing = Timing::kOff);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // The event may have been recorded before.
  PooledEvent acquire();
  void release(std::unique_ptr<Event> event) noexcept;

 private:
  std::shared_ptr<Library> library_;
  int device_;
  Timing timing_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace pynccl
