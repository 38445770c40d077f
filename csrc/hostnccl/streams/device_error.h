// DeviceError: a failed driver call. It carries a CUresult and appears to NCCL's functions as
// ncclUnhandledCudaError.
#pragma once

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

class DeviceError : public Error {
 public:
  explicit DeviceError(abi::CUresult result);
  DeviceError(abi::CUresult result, std::string text)
      : Error(abi::ncclUnhandledCudaError, std::move(text)), result_(result) {}
  abi::CUresult result() const { return result_; }

 private:
  abi::CUresult result_;
};

inline void require(bool condition, abi::CUresult otherwise) {
  if (!condition) throw DeviceError(otherwise);
}

// The name and the description of a result; null for one that hostnccl does not use.
const char* device_error_name(abi::CUresult result);
const char* device_error_text(abi::CUresult result);

}  // namespace hostnccl
