#include "comm/event_pool.h"

#include <new>

namespace pynccl {

EventPool::EventPool(std::shared_ptr<Library> library, int device, Timing timing)
    : library_(std::move(library)), device_(device), timing_(timing) {}

PooledEvent::~PooledEvent() {
  if (event_) pool_->release(std::move(event_));
}

PooledEvent EventPool::acquire() {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!event) event = std::make_unique<Event>(library_, device_, timing_ == Timing::kOn);
  return {shared_from_this(), std::move(event)};
}

void EventPool::release(std::unique_ptr<Event> event) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    free_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {  // the event is destroyed
  }
}

}  // namespace pynccl
