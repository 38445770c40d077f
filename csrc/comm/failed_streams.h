// FailedStreams: streams with work that has failed although the driver does not know it. A kernel
// of NCCL that was aborted or revoked ends as if it were complete, and a function that a stream has
// called cannot report an error. A wait for such work throws the failure: on the stream, by
// an event that was recorded after it, or on a stream that waited for such an event. A library that
// knows which work has failed (hostWorkFailure) does all of that itself.
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
  // Throws. cause: the text of the driver's error, or empty.
  using Throw = std::function<void(const std::string& cause)>;

  // Work that was enqueued on the streams at this time (of nccl/clock) has failed, and with it what
  // was enqueued later, until the failure is thrown.
  static void add(const std::vector<CUstream>& streams, std::int64_t since, const Throw& failure);

  // A wait for a stream that began at this time: throws where no wait for the stream has thrown the
  // failure, or one did after this one had begun.
  static void check(CUstream stream, std::int64_t began, const std::string& cause = {}) {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      check_failed(stream, began, cause);
  }
  // The same for an event, which throws the failure each time.
  static void check_event(CUstream recorded_on, std::int64_t recorded_at,
                          const std::string& cause = {}) {
    if (any_.load(std::memory_order_acquire)) [[unlikely]]
      check_recorded(recorded_on, recorded_at, cause);
  }

  // A stream waits for an event that was recorded on another one at this time.
  static void waits(CUstream waiting, CUstream recorded_on, std::int64_t recorded_at);
  static void forget(CUstream stream) noexcept;  // it was destroyed

 private:
  static void check_failed(CUstream stream, std::int64_t began, const std::string& cause);
  static void check_recorded(CUstream stream, std::int64_t at, const std::string& cause);
  inline static std::atomic<bool> any_ = false;
};

// What functions of the user have thrown that a library with hostFailFunction has called. It keeps
// the last of them.
class FailedFunctions {
 public:
  static const void* add(const std::shared_ptr<const FunctionFailure>& failure);
  static void check(const void* origin);  // throws, if it was returned by add()
};

}  // namespace pynccl
