// Failure of a call of the driver API: a CUresult, which for NCCL's calls is an unhandled CUDA
// error.
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

inline void require(bool holds, abi::CUresult otherwise) {
  if (!holds) throw DeviceError(otherwise);
}

// A result's name and meaning; null for one that is not known here.
const char* device_error_name(abi::CUresult result);
const char* device_error_text(abi::CUresult result);

}  // namespace hostnccl
