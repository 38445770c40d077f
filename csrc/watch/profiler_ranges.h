// Profiler ranges: two functions are called around each operation and each group of this process,
// to open and close a range of a profiler.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/observer.h"

namespace pynccl {

class ProfilerRanges {
 public:
  struct Call {
    const char* name;                  // such as "all_reduce", or "group"
    std::uint64_t nbytes;              // of the elements that the nccl.h function counts
    const Communicator* communicator;  // null for a group
  };
  using Open = void* (*)(const Call&);
  // Called on the same thread with the value of the open function, unless that is null.
  using Close = void (*)(void*);

  static void observe();

  static bool on() { return open_.load(std::memory_order_relaxed) != nullptr; }
  // Either both are null or neither. close must be the same function in all calls.
  static void set(Open open, Close close);

 private:
  friend class ProfilerRange;
  class Sink;

  inline static std::atomic<Open> open_ = nullptr;
  inline static std::atomic<Close> close_ = nullptr;
};

// The range of a call.
class ProfilerRange final : public Observation {
 public:
  explicit ProfilerRange(const ProfilerRanges::Call& call) {
    if (const ProfilerRanges::Open open = ProfilerRanges::open_.load(std::memory_order_acquire))
      range_ = open(call);
  }
  ~ProfilerRange() override {
    if (range_) ProfilerRanges::close_.load(std::memory_order_relaxed)(range_);
  }

 private:
  void* range_ = nullptr;
};

// The size in the range of an operation.
std::uint64_t profiled_bytes(const Operation& operation);

}  // namespace pynccl
