// DeviceError: the failure of a driver call, with its CUresult. For NCCL's functions it is
// ncclUnhandledCudaError.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

// A failure of work on a stream, shared by the stream and the events recorded on it.
struct StreamFailure {
  explicit StreamFailure(Error its_error) : error(std::move(its_error)) {}
  const Error error;
  // Whether the stream or an event has reported the failure to a caller. Later work on the stream
  // does not inherit it then.
  std::atomic<bool> reported = false;
};
using SharedFailure = std::shared_ptr<StreamFailure>;

class DeviceError : public Error {
 public:
  explicit DeviceError(abi::CUresult result);
  // reason: a text for device_error_text(), more specific than that of the result.
  DeviceError(abi::CUresult result, const std::string& reason);
  // CUDA_ERROR_UNKNOWN: work on a stream has failed.
  explicit DeviceError(SharedFailure failure,
                       const char* prefix = "work queued on the stream failed: ");
  abi::CUresult result() const { return result_; }
  void remember() const;  // as this thread's last error

 private:
  abi::CUresult result_;
  bool has_reason_ = false;
  SharedFailure failure_;
};

inline void require(bool condition, abi::CUresult otherwise) {
  if (!condition) throw DeviceError(otherwise);
}

// Throws the failure, if there is one.
inline void check_no_failure(const SharedFailure& failure) {
  if (failure) throw DeviceError(failure);
}

// Remembers another error, for a call that returns CUDA_ERROR_UNKNOWN.
void remember_unknown(const Error& error) noexcept;

// The work failure that this thread's last failed call encountered. Null if it was another error.
SharedFailure last_work_failure();

// The name and the text of a result. Null if hostnccl does not use it. The text of the result of
// this thread's last failed call is the reason of that failure.
const char* device_error_name(abi::CUresult result);
const char* device_error_text(abi::CUresult result);

}  // namespace hostnccl
