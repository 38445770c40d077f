// The calls of the CUDA driver API that pynccl uses, for CPU memory: the same names with host in
// place of cu, the same meanings. Here are those of the device, which is one, 0: this machine's
// CPU.
#include "hostnccl/api/device_api.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

using namespace hostnccl;

namespace pynccl::abi {
namespace {

constexpr int kDriverVersion = 13000;  // whose semantics these are

void require_device(CUdevice device) { require(device == 0, CUDA_ERROR_INVALID_DEVICE); }

CUcontext the_context() {
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

CUresult describe(const char** text, const char* known) {
  return checked([=] {
    *out(text) = known;
    require(known != nullptr, CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace

extern "C" {

CUresult hostInit(unsigned int flags) {
  return checked([=] { require(flags == 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostDriverGetVersion(int* version) {
  return checked([=] { *out(version) = kDriverVersion; });
}

CUresult hostGetErrorName(CUresult error, const char** text) {
  return describe(text, device_error_name(error));
}

CUresult hostGetErrorString(CUresult error, const char** text) {
  return describe(text, device_error_text(error));
}

CUresult hostDeviceGetCount(int* count) {
  return checked([=] { *out(count) = 1; });
}

CUresult hostDeviceGet(CUdevice* device, int ordinal) {
  return checked([=] {
    require_device(ordinal);
    *out(device) = 0;
  });
}

CUresult hostDeviceGetName(char* name, int len, CUdevice device) {
  return checked([=] {
    require_device(device);
    require(len > 0, CUDA_ERROR_INVALID_VALUE);
    const std::string text = cpu_name().substr(0, static_cast<size_t>(len) - 1);
    std::memcpy(out(name), text.c_str(), text.size() + 1);
  });
}

CUresult hostDeviceTotalMem(size_t* bytes, CUdevice device) {
  return checked([=] {
    require_device(device);
    *out(bytes) =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  });
}

// The device has one context, which is always current.
CUresult hostDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return checked([=] {
    require_device(device);
    *out(context) = the_context();
  });
}

CUresult hostDevicePrimaryCtxRelease(CUdevice device) {
  return checked([=] { require_device(device); });
}

CUresult hostCtxGetCurrent(CUcontext* context) {
  return checked([=] { *out(context) = the_context(); });
}

CUresult hostCtxSetCurrent(CUcontext context) {
  return checked(
      [=] { require(context == nullptr || context == the_context(), CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostCtxGetDevice(CUdevice* device) {
  return checked([=] { *out(device) = 0; });
}

CUresult hostPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return checked([=] {
    require(ptr != 0, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(out(data)) = CU_MEMORYTYPE_HOST;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(out(data)) = 0;
        return;
    }
    throw DeviceError(CUDA_ERROR_NOT_SUPPORTED);
  });
}

CUresult hostMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    if (bytes == 0) return;
    require(dst != 0 && src != 0, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(queue, [=] {
      std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    });
  });
}

}  // extern "C"

}  // namespace pynccl::abi
