// Observers: the event interface of communicators, streams, events and graphs. The monitor, flight
// dumps, comparisons, traces and recordings implement it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "comm/operation.h"

namespace pynccl {

class Communicator;
class Event;
class Library;
class WorkFailure;

// An operation whose communicator was checked to be open.
struct OperationEvent {
  Communicator& communicator;
  OperationKind kind;  // overrides operation.kind
  const Operation& operation;
  bool in_group;
  std::int64_t time = 0;  // of the call; a precise_time() if times are observed
};

// A wait by a stream for an event, or by the calling thread.
struct WaitEvent {
  enum class What : std::uint8_t { kWork, kStream, kEvent, kStreamEvent };

  What what;
  CUstream stream;                                    // the waiting stream, or a thread's target
  const std::shared_ptr<Library>* library = nullptr;  // null: the thread waits
  int device = -1;
  const Event* event = nullptr;  // the target, if it is an event
};

// A graph launch.
struct LaunchEvent {
  const std::shared_ptr<Library>& library;
  int device;
  std::uint64_t graph;  // the number of its capture
  CUstream stream;
};

// The state of an observer during a call, created at its begin and destroyed at its end.
class Observation {
 public:
  virtual ~Observation() = default;
  virtual void succeeded() {}

 private:
  friend class Observers;
  std::unique_ptr<Observation> next_;  // of the next observer
};

// All functions can be called from any thread.
class Observer {
 public:
  // Called only while operations are observed. before_operation() may throw to refuse the
  // operation. called() follows once the operation is in the flight recorder.
  virtual void before_operation(const OperationEvent&) {}
  virtual std::unique_ptr<Observation> called(const OperationEvent&) { return nullptr; }
  virtual void operation_failed(Communicator&) {}  // the last operation

  // Called only while times are observed.
  virtual std::unique_ptr<Observation> waits(const WaitEvent&) { return nullptr; }
  virtual std::unique_ptr<Observation> launches(const LaunchEvent&) { return nullptr; }

  virtual void created(Communicator&) {}  // it has a handle
  // Called before a communicator is freed. May throw to refuse that, unless it is an abort.
  virtual void before_close(const Communicator&, bool /*aborted*/) {}
  virtual void failed(const std::string& /*text*/) {}  // a communicator failed permanently
  // Called if a wait finds failed work. May throw a more specific exception.
  virtual void work_failed(const Library&, const WorkFailure&) {}
  virtual void driver_failed() {}
  virtual void deadlines_changed() {}  // operations may have become late

 protected:
  ~Observer() = default;
};

// The observers of the process.
class Observers {
 public:
  // Adds an observer, which must live as long as the process. Operations call before_operation()
  // and called() only on the observers that request them here.
  enum Operations : unsigned { kNone = 0, kBefore = 1, kCalled = 2 };
  static void add(Observer& observer, unsigned operations = kNone) {
    add_to(all_, observer);
    if ((operations & kBefore) != 0) add_to(before_, observer);
    if ((operations & kCalled) != 0) add_to(called_, observer);
  }

  // Enables the events of operations, or of times, until a matching call of stop_...().
  static void observe_operations() { operations_.fetch_add(1, std::memory_order_relaxed); }
  static void stop_operations() { operations_.fetch_sub(1, std::memory_order_relaxed); }
  static void observe_times() { times_.fetch_add(1, std::memory_order_relaxed); }
  static void stop_times() { times_.fetch_sub(1, std::memory_order_relaxed); }
  // Every operation calls this; it costs one load.
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

  static void add_to(List& list, Observer& observer) {
    for (std::atomic<Observer*>& slot : list) {
      Observer* none = nullptr;
      if (slot.compare_exchange_strong(none, &observer)) return;
    }
    throw std::length_error("there are too many observers");
  }

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
