// DeviceScope: makes a device current on this thread during a scope, to create communicators,
// streams and allocations. It uses the device's primary context, as torch and CuPy do.
#pragma once

#include <optional>

#include "nccl/library.h"

namespace pynccl {

class DeviceScope {
 public:
  // A negative device keeps the thread's current device. If the thread has none, the device chosen
  // by cudaSetDevice becomes current, or else device 0.
  DeviceScope(const Library& library, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  int device() const { return device_; }

 private:
  const Library& library_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  int device_ = 0;
};

// The scope of a call on a stream. A default stream's handle denotes the one of the current device,
// so its device is made current.
class DefaultStreamScope {
 public:
  DefaultStreamScope(const Library& library, int device, CUstream stream) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kStreamPerThread)
      scope_.emplace(library, device);
  }

 private:
  std::optional<DeviceScope> scope_;
};

// The device of any stream; for a default stream, the thread's current device as in DeviceScope.
int device_of(const Library& library, CUstream stream);

// The number of devices that the library's driver sees. Throws LibraryNotFound without a driver.
int device_count(const Library& library);

}  // namespace pynccl
