// Profiler ranges: two functions are called around each operation and each group of this process,
// to open and close a range of a profiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/flight_recorder.h"
#include "comm/observer.h"

namespace pynccl {

// The size in the range of an operation.
inline std::uint64_t profiled_bytes(const Operation& operation) {
  const OperationKind kind = plain(operation.kind);
  if (kind == OperationKind::kSignal || kind == OperationKind::kWaitSignal) return 0;
  return std::uint64_t{operation.count} * element_size(operation.dtype);
}

class ProfilerRanges final : public Observer {
 public:
  struct Call {
    const char* name;                  // such as "all_reduce", or "group"
    std::uint64_t nbytes;              // of the elements that the nccl.h function counts
    const Communicator* communicator;  // null for a group
  };
  using Open = void* (*)(const Call&);
  // Called on the same thread with the value of the open function, unless that is null.
  using Close = void (*)(void*);

  // The range of a call.
  class Range final : public Observation {
   public:
    explicit Range(const Call& call) {
      if (const Open open = open_.load(std::memory_order_acquire)) range_ = open(call);
    }
    ~Range() override {
      if (range_) close_.load(std::memory_order_relaxed)(range_);
    }

   private:
    void* range_ = nullptr;
  };

  static void observe() { Observers::add(*new ProfilerRanges, Observers::kCalled); }

  static bool on() { return open_.load(std::memory_order_relaxed) != nullptr; }
  // Either both are null or neither. close must be the same function in all calls.
  static void set(Open open, Close close) {
    if (close) close_.store(close, std::memory_order_relaxed);  // kept for the open ranges
    const Open before = open_.exchange(open, std::memory_order_release);
    if (open && !before) Observers::observe_operations();
    if (!open && before) Observers::stop_operations();
  }

  std::unique_ptr<Observation> called(const OperationEvent& event) override {
    if (!on()) return nullptr;
    return std::make_unique<Range>(
        Call{kind_name(event.kind), profiled_bytes(event.operation), &event.communicator});
  }

 private:
  inline static std::atomic<Open> open_ = nullptr;
  inline static std::atomic<Close> close_ = nullptr;
};

}  // namespace pynccl
