// Events that are used again: one is taken for an operation and comes back when nobody refers to it
// any more.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/stream.h"

namespace pynccl {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool(std::shared_ptr<Library> library, int device);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // An event that was perhaps recorded before; the pool lives as long as it.
  std::shared_ptr<Event> take();

 private:
  void give_back(std::unique_ptr<Event> event) noexcept;

  std::shared_ptr<Library> library_;
  int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace pynccl
