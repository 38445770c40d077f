// An object of the process, made at its first use and never destroyed. The child of a fork has a
// new one: the threads that use it are gone, and may have been changing it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

namespace common {

// Both are made when the library is loaded: in the child of a fork nobody could finish a static of
// a function that another thread was making.
template <typename T>
struct OfProcess {
  static inline constinit std::atomic<T*> instance{nullptr};
  // Nothing is made in the child: other threads may have had locks that a constructor takes.
  static inline const int registered =
      pthread_atfork(nullptr, nullptr, [] { instance.store(nullptr); });
};

template <typename T>
T& per_process() {
  static_cast<void>(&OfProcess<T>::registered);
  std::atomic<T*>& instance = OfProcess<T>::instance;
  T* object = instance.load(std::memory_order_acquire);
  if (object) [[likely]]
    return *object;
  auto made = std::make_unique<T>();
  if (instance.compare_exchange_strong(object, made.get())) object = made.release();
  return *object;
}

}  // namespace common
