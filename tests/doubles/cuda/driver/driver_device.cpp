// Devices and contexts.
#include <cstdio>

#include "driver/driver.h"
#include "driver/settings.h"

namespace cuda_double::driver {
namespace {

bool is_device(CUdevice device) { return device >= 0 && device < device_count(); }

}  // namespace

CUresult Init(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult DriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = static_cast<int>(setting("CUDA_DOUBLE_DRIVER_VERSION", 13000));
  return CUDA_SUCCESS;
}

CUresult GetErrorName(CUresult error, const char** text) {
  if (error == CUDA_ERROR_INVALID_CONTEXT)
    return *text = "CUDA_ERROR_INVALID_CONTEXT", CUDA_SUCCESS;
  if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return *text = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", CUDA_SUCCESS;
  return engine().GetErrorName(error, text);
}

CUresult GetErrorString(CUresult error, const char** text) {
  if (error == CUDA_ERROR_INVALID_CONTEXT) return *text = "invalid device context", CUDA_SUCCESS;
  if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return *text = "operation would make the legacy stream depend on a capturing blocking stream",
           CUDA_SUCCESS;
  return engine().GetErrorString(error, text);
}

CUresult DeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult DeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult DeviceGetName(char* name, int len, CUdevice device) {
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(len), "CUDA test double");
  return CUDA_SUCCESS;
}

CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context_of(device).retain();
  *context = context_of(device).handle();
  return CUDA_SUCCESS;
}

CUresult CtxGetCurrent(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = current() ? current()->handle() : nullptr;
  return CUDA_SUCCESS;
}

CUresult CtxSetCurrent(CUcontext context) {
  if (context == nullptr) return set_current(nullptr), CUDA_SUCCESS;
  Context* found = find_context(context);
  if (found == nullptr || !found->active()) return CUDA_ERROR_INVALID_CONTEXT;
  set_current(found);
  return CUDA_SUCCESS;
}

CUresult CtxGetDevice(CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device();
  return CUDA_SUCCESS;
}

CUresult CtxSynchronize() {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult first = CUDA_SUCCESS;
  for (const CUstream queue : current()->queues()) {
    const CUresult result = engine().StreamSynchronize(queue);
    // The stream may have been destroyed meanwhile. CUDA_ERROR_UNKNOWN is a failed NCCL operation,
    // as in StreamSynchronize.
    const bool failed = result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_UNKNOWN;
    if (first == CUDA_SUCCESS && failed) first = result;
  }
  for (const auto& event : current()->work_of_destroyed())
    engine().EventSynchronize(static_cast<CUevent>(event.get()));
  return first;
}

}  // namespace cuda_double::driver
