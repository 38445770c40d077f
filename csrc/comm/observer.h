// Observers: what communicators, streams, events and graphs tell of themselves. This interface is
// all that they know of the monitor, flight dumps, comparisons, traces and recordings.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/operation.h"

namespace pynccl {

class Communicator;
class Event;
class Library;
class WorkFailure;

// An operation, after the state of its communicator was checked.
struct OperationEvent {
  Communicator& communicator;
  OperationKind kind;  // in place of that of operation
  const Operation& operation;
  bool in_group;
  std::int64_t time =
      0;  // of the call: precise_time() while times are observed, else coarse_time()
};

// A wait of a stream for an event, or of the calling thread.
struct WaitEvent {
  enum class What : std::uint8_t { kWork, kStream, kEvent, kStreamEvent };

  What what;
  CUstream stream;                                    // that waits; of a thread, that it waits for
  const std::shared_ptr<Library>* library = nullptr;  // null: the thread waits
  int device = -1;
  const Event* event = nullptr;  // that is waited for
};

// A launch of a graph that no capture records.
struct LaunchEvent {
  const std::shared_ptr<Library>& library;
  int device;
  std::uint64_t graph;  // the number of its capture
  CUstream stream;
};

// The memory of a window.
struct WindowEvent {
  std::uint64_t number;
  const void* address;
  std::size_t nbytes;
};

// What an observer has made at the begin of a call: it is destroyed at its end.
class Observation {
 public:
  virtual ~Observation() = default;
  virtual void succeeded() {}

 private:
  friend class Observers;
  std::unique_ptr<Observation> next_;  // of another observer
};

// All functions can be called from any thread.
class Observer {
 public:
  // Called only while operations are observed. before_operation() may refuse the operation by an
  // exception. called(): the flight recorder has the operation.
  virtual void before_operation(const OperationEvent&) {}
  virtual std::unique_ptr<Observation> called(const OperationEvent&) { return nullptr; }
  virtual void operation_failed(Communicator&) {}  // the last one that was called
  virtual void window_opened(Communicator&, const WindowEvent&) {}
  virtual void window_closed(Communicator&, std::uint64_t /*number*/) {}

  // Called only while times are observed.
  virtual std::unique_ptr<Observation> waits(const WaitEvent&) { return nullptr; }
  virtual std::unique_ptr<Observation> launches(const LaunchEvent&) { return nullptr; }

  virtual void created(Communicator&) {}  // it has a handle
  // Before a communicator is freed. May refuse it by an exception, unless it is an abort.
  virtual void before_close(const Communicator&, bool /*aborted*/) {}
  virtual void failed(const std::string& /*text*/) {}  // a communicator, for good
  // A wait has met failed work, and may throw what is known of it; or the driver has failed.
  virtual void work_failed(const Library&, const WorkFailure&) {}
  virtual void driver_failed() {}
  virtual void deadlines_changed() {}  // what is late may be another now

 protected:
  ~Observer() = default;
};

// The observers of the process.
class Observers {
 public:
  // Adds an observer, which must live as long as the process. before_operation() and called() are
  // for those that ask for them: a call of an operation passes no other.
  enum Operations : unsigned { kNone = 0, kBefore = 1, kCalled = 2 };
  static void add(Observer& observer, unsigned operations = kNone);

  // Switches the events of operations and of windows on; each call is undone by one
  // stop_operations(). The same for times.
  static void observe_operations() { operations_.fetch_add(1, std::memory_order_relaxed); }
  static void stop_operations() { operations_.fetch_sub(1, std::memory_order_relaxed); }
  static void observe_times() { times_.fetch_add(1, std::memory_order_relaxed); }
  static void stop_times() { times_.fetch_sub(1, std::memory_order_relaxed); }
  // One load in every call of an operation.
  static bool operations() { return operations_.load(std::memory_order_relaxed) != 0; }
  static bool times() { return times_.load(std::memory_order_relaxed) != 0; }

  static void before_operation(const OperationEvent& event) {
    each(before_, [&](Observer& one) { one.before_operation(event); });
  }
  static std::unique_ptr<Observation> called(const OperationEvent& event) {
    return all_of(called_, [&](Observer& one) { return one.called(event); });
  }
  static void succeeded(const std::unique_ptr<Observation>& first) {
    for (Observation* one = first.get(); one; one = one->next_.get()) one->succeeded();
  }
  static void operation_failed(Communicator& communicator) {
    if (operations()) each(all_, [&](Observer& one) { one.operation_failed(communicator); });
  }
  static void window_opened(Communicator& communicator, const WindowEvent& event) {
    if (operations()) each(all_, [&](Observer& one) { one.window_opened(communicator, event); });
  }
  static void window_closed(Communicator& communicator, std::uint64_t number) {
    if (operations()) each(all_, [&](Observer& one) { one.window_closed(communicator, number); });
  }
  static std::unique_ptr<Observation> waits(const WaitEvent& event) {
    if (!times()) [[likely]]
      return nullptr;
    return all_of(all_, [&](Observer& one) { return one.waits(event); });
  }
  static std::unique_ptr<Observation> launches(const LaunchEvent& event) {
    if (!times()) [[likely]]
      return nullptr;
    return all_of(all_, [&](Observer& one) { return one.launches(event); });
  }
  static void created(Communicator& communicator) {
    each(all_, [&](Observer& one) { one.created(communicator); });
  }
  static void before_close(const Communicator& communicator, bool aborted) {
    each(all_, [&](Observer& one) { one.before_close(communicator, aborted); });
  }
  static void failed(const std::string& text) {
    each(all_, [&](Observer& one) { one.failed(text); });
  }
  static void work_failed(const Library& library, const WorkFailure& failure) {
    each(all_, [&](Observer& one) { one.work_failed(library, failure); });
  }
  static void driver_failed() {
    each(all_, [](Observer& one) { one.driver_failed(); });
  }
  static void deadlines_changed() {
    each(all_, [](Observer& one) { one.deadlines_changed(); });
  }

 private:
  static constexpr std::size_t kMaxObservers = 8;
  using List = std::array<std::atomic<Observer*>, kMaxObservers>;

  static void add_to(List& list, Observer& observer);

  template <class Call>
  static void each(const List& list, Call&& call) {
    for (const std::atomic<Observer*>& slot : list) {
      Observer* const observer = slot.load(std::memory_order_acquire);
      if (!observer) return;
      call(*observer);
    }
  }
  template <class Call>
  static std::unique_ptr<Observation> all_of(const List& list, Call&& call) {
    std::unique_ptr<Observation> all;
    each(list, [&](Observer& observer) {
      std::unique_ptr<Observation> one = call(observer);
      if (!one) return;
      one->next_ = std::move(all);
      all = std::move(one);
    });
    return all;
  }

  inline static List all_{}, before_{}, called_{};
  inline static std::atomic<unsigned> operations_ = 0;
  inline static std::atomic<unsigned> times_ = 0;
};

}  // namespace pynccl
