// per_process(): an object per process, created at its first use and never destroyed. A forked
// child gets a new one, because the threads that use the parent's are gone and may have been
// modifying it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

namespace common {

// Both members are initialised when the library is loaded. In a forked child, no thread could
// complete a function-local static whose construction another thread had begun.
template <typename T>
struct OfProcess {
  static inline constinit std::atomic<T*> instance{nullptr};
  // The handler constructs nothing: other threads may own locks that a constructor acquires.
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
  auto created = std::make_unique<T>();
  if (instance.compare_exchange_strong(object, created.get())) object = created.release();
  return *object;
}

}  // namespace common
