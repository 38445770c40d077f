// DeviceError: a failed driver call. It carries a CUresult and appears to NCCL's functions as
// ncclUnhandledCudaError.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

// A failure of work on a stream. The stream and the events that are recorded on it share it.
struct StreamFailure {
  explicit StreamFailure(Error its_error) : error(std::move(its_error)) {}
  const Error error;
  // Whether a caller has been told the reason, by the stream or by one of the events. Work that is
  // enqueued on the stream after that does not have the failure.
  std::atomic<bool> reported = false;
};
using SharedFailure = std::shared_ptr<StreamFailure>;

class DeviceError : public Error {
 public:
  explicit DeviceError(abi::CUresult result);
  // reason: details beyond the result. device_error_text() returns it after the call has failed.
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

// For a call that returns CUDA_ERROR_UNKNOWN for another reason.
void remember_unknown(const Error& error) noexcept;

// The work failure that this thread's last failed call encountered; null if it was another error.
SharedFailure last_work_failure();

// The name and the description of a result; null for one that hostnccl does not use. The reason of
// this thread's last failed call is the description of its result.
const char* device_error_name(abi::CUresult result);
const char* device_error_text(abi::CUresult result);

}  // namespace hostnccl
