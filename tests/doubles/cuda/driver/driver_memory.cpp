// Device memory.
#include <cstring>
#include <string_view>

#include "driver/driver.h"
#include "driver/memory.h"

namespace cuda_double::driver {
namespace {

char* pointer(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

struct Copy {
  char* to;
  const char* from;
  size_t bytes;
  MemoryUse use;
};

struct Fill {
  char* to;
  int value;
  size_t bytes;
  MemoryUse use;
};

void add_device_memory(MemoryUse& use, const char* address, size_t bytes) {
  if (find_range(address)) use.add(address, bytes);
}

int device_of(const Stream& stream, const char* a, const char* b) {
  // A copy may be between devices.
  for (const char* address : {a, b})
    if (const RangeRef range = find_range(address)) return range->device;
  return stream.context().device();
}

CUresult synchronous(CUresult enqueued) {
  return enqueued == CUDA_SUCCESS ? StreamSynchronize(nullptr) : enqueued;
}

}  // namespace

CUresult PointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  const RangeRef range = find_range(pointer(ptr));
  if (data == nullptr || !range) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = range->device;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

// A copy from device memory to the host's pageable memory returns when it is done.
CUresult MemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream handle) {
  bool returns_when_done = false;
  const CUresult enqueued = on_stream(handle, [&](Stream& s) {
    if (bytes == 0) return CUDA_SUCCESS;
    if (dst == 0 || src == 0) return CUDA_ERROR_INVALID_VALUE;
    // A graph copies repeatedly, and its owner manages its memory.
    if (capturing(s)) return engine().MemcpyAsync(dst, src, bytes, s.queue());
    auto copy =
        std::make_unique<Copy>(Copy{pointer(dst),
                                    pointer(src),
                                    bytes,
                                    {"cuMemcpyAsync", device_of(s, pointer(dst), pointer(src))}});
    const RangeRef to = find_range(copy->to), from = find_range(copy->from);
    add_device_memory(copy->use, copy->to, bytes);
    if (!to || !from || to->device == from->device) add_device_memory(copy->use, copy->from, bytes);
    returns_when_done = from && !to;
    return engine().LaunchHostFunc(
        s.queue(),
        [](void* data) {
          const std::unique_ptr<Copy> own(static_cast<Copy*>(data));
          std::memmove(own->to, own->from, own->bytes);
          own->use.end();
        },
        copy.release());
  });
  if (enqueued != CUDA_SUCCESS || !returns_when_done) return enqueued;
  return StreamSynchronize(handle);
}

CUresult MemcpyHtoD(CUdeviceptr dst, const void* src, size_t bytes) {
  return synchronous(MemcpyAsync(dst, reinterpret_cast<CUdeviceptr>(src), bytes, nullptr));
}

CUresult MemcpyDtoH(void* dst, CUdeviceptr src, size_t bytes) {
  return synchronous(MemcpyAsync(reinterpret_cast<CUdeviceptr>(dst), src, bytes, nullptr));
}

CUresult MemsetD8Async(CUdeviceptr ptr, unsigned char value, size_t bytes, CUstream handle) {
  return on_stream(handle, [&](Stream& s) {
    auto fill = std::make_unique<Fill>(
        Fill{pointer(ptr), value, bytes, {"cuMemsetD8Async", s.context().device()}});
    fill->use.add(fill->to, bytes);
    return engine().LaunchHostFunc(
        s.queue(),
        [](void* data) {
          const std::unique_ptr<Fill> own(static_cast<Fill*>(data));
          std::memset(own->to, own->value, own->bytes);
          own->use.end();
        },
        fill.release());
  });
}

CUresult MemAlloc(CUdeviceptr* ptr, size_t bytes) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (ptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const RangeRef range = allocate(bytes, current()->device(), "cuMemAlloc");
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  *ptr = reinterpret_cast<CUdeviceptr>(range->base);
  return CUDA_SUCCESS;
}

CUresult MemFreeAsync(CUdeviceptr ptr, CUstream handle) {
  return on_stream(handle, [&](Stream& s) {
    RangeRef range = take_range(pointer(ptr));
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    return engine().LaunchHostFunc(
        s.queue(),
        [](void* data) {
          const std::unique_ptr<RangeRef> own(static_cast<RangeRef*>(data));
          free_range(*own, "cuMemFreeAsync");
        },
        new RangeRef(std::move(range)));
  });
}

CUresult MemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr ptr) {
  const RangeRef range = find_range(pointer(ptr));
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(range->base);
  if (bytes != nullptr) *bytes = range->bytes;
  return CUDA_SUCCESS;
}

// For memory of ncclMemAlloc, like all memory that NCCL can share between processes.
CUresult MemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const RangeRef range = find_range(address);
  if (!range || std::string_view(range->origin) != "ncclMemAlloc") return CUDA_ERROR_INVALID_VALUE;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(range->base);
  return CUDA_SUCCESS;
}

CUresult MemRelease(CUmemGenericAllocationHandle handle) {
  return handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace cuda_double::driver
