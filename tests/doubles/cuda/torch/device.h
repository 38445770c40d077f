// Driver access for the CUDA device of a build of torch without CUDA.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include "driver/control.h"
#include "types.h"

namespace cuda_double {

#define FUNCTION(symbol, result, name, ...) extern "C" result symbol(__VA_ARGS__);
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

}  // namespace cuda_double

// The current streams of a thread, which torch_cuda.py sets.
extern "C" void cuda_double_set_current_stream(int device, cuda_double::CUstream stream);
extern "C" cuda_double::CUstream cuda_double_current_stream(int device);

namespace cuda_double {

inline void check(CUresult result, const char* function) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  TORCH_CHECK(false, function, " failed: ", name ? name : "unknown error");
}

// A stream's id is its handle, so the default stream has id 0.
inline CUstream handle_of(const c10::Stream& stream) {
  return reinterpret_cast<CUstream>(stream.id());
}

inline c10::Stream stream_of(const c10::Device& device, CUstream handle) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(handle));
}

int current_device();  // 0 in a thread without a context, as in the CUDA runtime
void set_device(int device);

inline CUstream current_stream(const c10::Device& device) {
  return cuda_double_current_stream(device.index());
}

// Waits for the current stream of a device.
void wait_for_current(const c10::Device& device);

// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(current_device()) { set_device(device); }
  ~DeviceScope() { set_device(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const int before_;
};

}  // namespace cuda_double
