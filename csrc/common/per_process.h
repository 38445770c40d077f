// An object of the process, made at its first use and never destroyed. The child of a fork has a
// new one: the threads that use it are gone, and may have been changing it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

namespace common {

template <typename T>
T& per_process() {
  struct Instance {
    static std::atomic<T*>& get() {
      static std::atomic<T*> instance = [] {
        // Nothing is made here: other threads may have had locks that its constructor takes.
        pthread_atfork(nullptr, nullptr, [] { get().store(nullptr); });
        return nullptr;
      }();
      return instance;
    }
  };
  std::atomic<T*>& instance = Instance::get();
  T* object = instance.load(std::memory_order_acquire);
  if (object) [[likely]]
    return *object;
  auto made = std::make_unique<T>();
  if (instance.compare_exchange_strong(object, made.get())) object = made.release();
  return *object;
}

}  // namespace common
