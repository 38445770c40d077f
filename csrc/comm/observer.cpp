#include "comm/observer.h"

#include <stdexcept>

namespace pynccl {

void Observers::add(Observer& observer, unsigned operations) {
  add_to(all_, observer);
  if ((operations & kBefore) != 0) add_to(before_, observer);
  if ((operations & kCalled) != 0) add_to(called_, observer);
}

void Observers::add_to(List& list, Observer& observer) {
  for (std::atomic<Observer*>& slot : list) {
    Observer* none = nullptr;
    if (slot.compare_exchange_strong(none, &observer)) return;
  }
  throw std::length_error("there are too many observers");
}

}  // namespace pynccl
