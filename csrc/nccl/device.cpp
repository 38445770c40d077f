#include "nccl/device.h"

#include <dlfcn.h>

#include "nccl/library.h"

namespace pynccl {
namespace {

// The device chosen by cudaSetDevice on this thread, or 0 if no CUDA runtime is loaded. Before
// CUDA 12 cudaSetDevice alone does not create a context.
int runtime_device() {
  const std::string runtime = loaded_path("libcudart.so");
  if (runtime.empty()) return 0;
  void* handle = dlopen(runtime.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const auto get =
      handle ? reinterpret_cast<int (*)(int*)>(dlsym(handle, "cudaGetDevice")) : nullptr;
  int device = 0;
  return get && get(&device) == 0 ? device : 0;
}

}  // namespace

DeviceScope::DeviceScope(const Library& library, int device) : library_(library) {
  DRIVER_CHECK(library, CtxGetCurrent, (&previous_));
  if (previous_) {
    DRIVER_CHECK(library, CtxGetDevice, (&device_));
    if (device < 0 || device == device_) return;
  }
  device_ = device < 0 ? runtime_device() : device;
  const int count = device_count(library);
  if (device_ >= count)
    throw std::invalid_argument("device: " + std::to_string(device_) +
                                " does not exist; there are " + std::to_string(count) + " devices");
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  DRIVER_CHECK(library, DeviceGet, (&ordinal, device_));
  // Retained until the process ends, as the CUDA runtime does: releasing the last reference would
  // reset the device for its other users.
  DRIVER_CHECK(library, DevicePrimaryCtxRetain, (&context, ordinal));
  DRIVER_CHECK(library, CtxSetCurrent, (context));
  changed_ = true;
}

DeviceScope::~DeviceScope() {
  // A thread without a context keeps the new one, because NCCL expects a current context.
  if (changed_ && previous_) library_.driver().CtxSetCurrent(previous_);
}

int device_of(const Library& library, CUstream stream) {
  const DeviceScope scope(library, -1);
  CUcontext current = nullptr, context = nullptr;
  DRIVER_CHECK(library, CtxGetCurrent, (&current));
  DRIVER_CHECK(library, StreamGetCtx, (stream, &context));
  if (context == current) return scope.device();
  int device = 0;
  DRIVER_CHECK(library, CtxSetCurrent, (context));
  const CUresult result = library.driver().CtxGetDevice(&device);
  DRIVER_CHECK(library, CtxSetCurrent, (current));
  if (result != CUDA_SUCCESS) throw_driver(library, result, "cuCtxGetDevice", __FILE__, __LINE__);
  return device;
}

int device_count(const Library& library) {
  int count = 0;
  DRIVER_CHECK(library, DeviceGetCount, (&count));
  return count;
}

}  // namespace pynccl
