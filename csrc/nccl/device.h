// DeviceScope: makes a device current on this thread for the length of a scope, for the creation of
// communicators, streams and allocations. It uses the device's primary context, as torch and CuPy
// do.
#pragma once

#include "nccl/library.h"

namespace pynccl {

class DeviceScope {
 public:
  // A device below 0 keeps the thread's current device. Where there is none, the device of
  // cudaSetDevice becomes current, or device 0.
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

// How many devices the library's driver sees. Throws LibraryNotFound where there is no driver.
int device_count(const Library& library);

}  // namespace pynccl
