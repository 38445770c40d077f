#include "comm/observer.h"

#include <stdexcept>

namespace pynccl {

void Observers::add(Observer& observer) {
  for (std::atomic<Observer*>& slot : observers_) {
    Observer* none = nullptr;
    if (slot.compare_exchange_strong(none, &observer)) return;
  }
  throw std::length_error("there are too many observers");
}

}  // namespace pynccl
