// FailedStreams: streams with failed work that the driver does not know to have failed. An NCCL
// kernel that was aborted or revoked ends as if it had completed, and a host function on a stream
// cannot report an error. Waits for such work throw its failure: waits for the stream, for an event
// recorded after the work, or for a stream that waited for such an event. A library that tracks
// failed work (hostWorkFailure) does all of that itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nccl/failure.h"

namespace pynccl {

class FailedStreams {
 public:
  // Throws the failure. cause: the text of the driver's error, or empty.
  using Throw = std::function<void(const std::string& cause)>;

  // Marks the work that was enqueued on the streams from this time (of nccl/clock) on as failed,
  // until the failure is thrown.
  static void add(const std::vector<CUstream>& streams, std::int64_t since, const Throw& failure);

  // Checks a wait for a stream that began at this time. Throws unless another wait for the stream
  // had already thrown the failure when this one began.
  static void check(CUstream stream, std::int64_t began, const std::string& cause = {}) {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      check_failed(stream, began, cause);
  }
  // Checks a wait for an event. Throws the failure each time.
  static void check_event(CUstream recorded_on, std::int64_t recorded_at,
                          const std::string& cause = {}) {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      check_recorded(recorded_on, recorded_at, cause);
  }

  // Records that a stream waits for an event that was recorded on another one at this time.
  static void waits(CUstream waiting, CUstream recorded_on, std::int64_t recorded_at);
  static void forget(CUstream stream) noexcept;  // called when it is destroyed

 private:
  static void check_failed(CUstream stream, std::int64_t began, const std::string& cause);
  static void check_recorded(CUstream stream, std::int64_t at, const std::string& cause);
  inline static std::atomic<bool> any_ = false;
};

// The last exceptions that user functions threw on streams of a library with hostFailFunction.
class FailedFunctions {
 public:
  static const void* add(const std::shared_ptr<const FunctionFailure>& failure);
  static void check(const void* origin);  // throws the exception for which add() returned origin
};

}  // namespace pynccl
