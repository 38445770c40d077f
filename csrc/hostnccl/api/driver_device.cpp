// The driver API's functions for the device, its context, pointers and copies. There is one device,
// 0: the CPUs of this machine.
#include "hostnccl/api/driver_api.h"
#include "hostnccl/segment/memory.h"

#include <cstring>
#include <fstream>
#include <string>

using namespace hostnccl;

namespace pynccl::abi {
namespace {

constexpr int kDriverVersion = 13000;  // the CUDA version with the semantics of these functions

void require_device(CUdevice device) { require(device == 0, CUDA_ERROR_INVALID_DEVICE); }

CUcontext device_context() {
  static char context;
  return reinterpret_cast<CUcontext>(&context);
}

std::string cpu_name() {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

CUresult set_text(const char** text, const char* known) {
  return driver_guarded([=] {
    *non_null(text) = known;
    require(known != nullptr, CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace

extern "C" {

CUresult hostInit(unsigned int flags) {
  return driver_guarded([=] { require(flags == 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostDriverGetVersion(int* version) {
  return driver_guarded([=] { *non_null(version) = kDriverVersion; });
}

CUresult hostGetErrorName(CUresult error, const char** text) {
  return set_text(text, device_error_name(error));
}

CUresult hostGetErrorString(CUresult error, const char** text) {
  return set_text(text, device_error_text(error));
}

CUresult hostDeviceGetCount(int* count) {
  return driver_guarded([=] { *non_null(count) = 1; });
}

CUresult hostDeviceGet(CUdevice* device, int ordinal) {
  return driver_guarded([=] {
    require_device(ordinal);
    *non_null(device) = 0;
  });
}

CUresult hostDeviceGetName(char* name, int len, CUdevice device) {
  return driver_guarded([=] {
    require_device(device);
    require(len > 0, CUDA_ERROR_INVALID_VALUE);
    const std::string text = cpu_name().substr(0, static_cast<size_t>(len) - 1);
    std::memcpy(non_null(name), text.c_str(), text.size() + 1);
  });
}

// The device has one context, and it is always current.
CUresult hostDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return driver_guarded([=] {
    require_device(device);
    *non_null(context) = device_context();
  });
}

CUresult hostCtxGetCurrent(CUcontext* context) {
  return driver_guarded([=] { *non_null(context) = device_context(); });
}

CUresult hostCtxSetCurrent(CUcontext context) {
  return driver_guarded([=] {
    require(context == nullptr || context == device_context(), CUDA_ERROR_INVALID_VALUE);
  });
}

CUresult hostCtxGetDevice(CUdevice* device) {
  return driver_guarded([=] { *non_null(device) = 0; });
}

CUresult hostStreamGetCtx(CUstream stream, CUcontext* context) {
  return driver_guarded([=] {
    static_cast<void>(stream_of(stream));
    *non_null(context) = device_context();
  });
}

CUresult hostCtxSynchronize() {
  return driver_guarded([] {
    Capture::check_unsafe_call();
    Capture::check_nothing_captured();
    Stream::synchronize_all();
  });
}

CUresult hostPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return driver_guarded([=] {
    require(ptr != 0, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(non_null(data)) = CU_MEMORYTYPE_HOST;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(non_null(data)) = 0;
        return;
    }
    throw DeviceError(CUDA_ERROR_NOT_SUPPORTED);
  });
}

// Only for allocations of ncclMemAlloc.
CUresult hostMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr ptr) {
  return driver_guarded([=] {
    const auto allocation = find_allocation(reinterpret_cast<const void*>(ptr), 1);
    require(allocation != nullptr, CUDA_ERROR_INVALID_VALUE);
    if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(allocation->base());
    if (bytes != nullptr) *bytes = allocation->bytes();
  });
}

// The base of an allocation is its handle. Nothing is retained, because memory files are not shared
// through handles.
CUresult hostMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return driver_guarded([=] {
    const auto allocation = find_allocation(address, 1);
    require(allocation != nullptr, CUDA_ERROR_INVALID_VALUE);
    *non_null(handle) = reinterpret_cast<CUmemGenericAllocationHandle>(allocation->base());
  });
}

CUresult hostMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_guarded([=] { require(handle != 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    if (bytes == 0) return;
    require(dst != 0 && src != 0, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(target, [=] {
      std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    });
  });
}

}  // extern "C"

}  // namespace pynccl::abi
