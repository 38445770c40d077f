// Makes a device the current one of this thread for the length of a scope, as communicator
// creation, streams and allocations need it. The device's primary context is the one that torch and
// CuPy use.
#pragma once

#include "core/library.h"

namespace pynccl {

class DeviceScope {
 public:
  // A device below 0 leaves the thread's current device as it is; without any, device 0 becomes
  // current.
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
