// DeviceError: a failed driver call. It carries a CUresult and appears to NCCL's functions as
// ncclUnhandledCudaError.
#pragma once

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

class DeviceError : public Error {
 public:
  explicit DeviceError(abi::CUresult result);
  // reason: more than the result says. device_error_text() returns it after the call has failed.
  DeviceError(abi::CUresult result, const std::string& reason);
  abi::CUresult result() const { return result_; }
  void remember() const;  // as this thread's last error

 private:
  abi::CUresult result_;
  bool has_reason_ = false;
};

inline void require(bool condition, abi::CUresult otherwise) {
  if (!condition) throw DeviceError(otherwise);
}

// The name and the description of a result; null for one that hostnccl does not use. The reason of
// this thread's last failed call is the description of its result.
const char* device_error_name(abi::CUresult result);
const char* device_error_text(abi::CUresult result);

}  // namespace hostnccl
