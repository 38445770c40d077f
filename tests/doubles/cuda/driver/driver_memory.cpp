// Device memory.
#include <cstring>
#include <string_view>

#include "driver/driver.h"
#include "driver/memory.h"

namespace cuda_double::driver {
namespace {

char* pointer(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

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
    const RangeRef to = find_range(pointer(dst)), from = find_range(pointer(src));
    const int device = to ? to->device : from ? from->device : s.context().device();
    const auto use = std::make_shared<MemoryUse>("cuMemcpyAsync", device);
    if (to) use->add(pointer(dst), bytes);
    if (from && from->device == device) use->add(pointer(src), bytes);
    returns_when_done = from && !to;
    return launch(s, [=] {
      std::memmove(pointer(dst), pointer(src), bytes);
      use->end();
    });
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
    const auto use = std::make_shared<MemoryUse>("cuMemsetD8Async", s.context().device());
    use->add(pointer(ptr), bytes);
    return launch(s, [=] {
      std::memset(pointer(ptr), value, bytes);
      use->end();
    });
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
    const RangeRef range = take_range(pointer(ptr));
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    return launch(s, [range] { free_range(range, "cuMemFreeAsync"); });
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
