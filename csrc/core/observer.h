// Observers of communicators. An observer is called before an operation is issued and before a
// communicator is freed. Communicators know this interface only; core/graph implements it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/table.h"

namespace pynccl {

class Communicator;

class CommunicatorObserver {
 public:
  // Before an operation of the communicator is issued on a stream. Called only while operations are
  // watched.
  virtual void before_operation(const std::shared_ptr<Communicator>& communicator,
                                CUstream stream) = 0;
  // Before the communicator is freed. May refuse by an exception, unless it is an abort.
  virtual void before_close(const Communicator& communicator, bool aborted) = 0;

 protected:
  ~CommunicatorObserver() = default;
};

// The observers of all communicators of the process. All functions can be called from any thread.
class CommunicatorObservers {
 public:
  // Adds an observer, which must live as long as the process.
  static void add(CommunicatorObserver& observer);

  // Switches before_operation() on; each call is undone by one stop_watching().
  static void watch_operations() { watchers_.fetch_add(1, std::memory_order_relaxed); }
  static void stop_watching() { watchers_.fetch_sub(1, std::memory_order_relaxed); }
  // The same for core/trace, for which before_operation() is not called.
  static void trace_operations() { watchers_.fetch_add(kTrace, std::memory_order_relaxed); }
  static void stop_tracing() { watchers_.fetch_sub(kTrace, std::memory_order_relaxed); }
  // One load in every call of an operation.
  static bool watched() { return watchers_.load(std::memory_order_relaxed) != 0; }
  // Whether before_operation() is to be called.
  static bool observed() { return watchers_.load(std::memory_order_relaxed) % kTrace != 0; }

  static void before_operation(const std::shared_ptr<Communicator>& communicator, CUstream stream);
  static void before_close(const Communicator& communicator, bool aborted);

 private:
  static std::vector<CommunicatorObserver*> all();

  static constexpr unsigned kTrace = 1u << 24;

  inline static std::atomic<unsigned> watchers_ = 0;  // those of core/trace count kTrace each
};

}  // namespace pynccl
