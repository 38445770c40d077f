// Events that are used again: one is taken for an operation and comes back when that is over.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/stream.h"

namespace pynccl {

class EventPool;

// An event of a pool, which lives as long as it; the event goes back when this is destroyed.
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
  EventPool(std::shared_ptr<Library> library, int device);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // An event that was perhaps recorded before.
  PooledEvent take();
  void give_back(std::unique_ptr<Event> event) noexcept;

 private:
  std::shared_ptr<Library> library_;
  int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace pynccl
