// The C part of the stand-in for CUDA tensors: memory from the caching allocator, the current
// streams, and a DLPack exchange API that presents torch's CPU tensors as CUDA tensors.
#include <Python.h>
#include <dlpack.h>

#include <array>

#include "driver/control.h"
#include "driver/stream.h"

namespace {

using cuda_double::CUstream;

const DLPackExchangeAPI* of_torch = nullptr;
DLPackExchangeAPI api;

thread_local std::array<CUstream, cuda_double::kMostDevices> current_streams{};

int show_as_cuda(PyObject* tensor, DLDevice* device) {
  PyObject* ordinal = PyObject_GetAttrString(tensor, "_ordinal");
  if (ordinal == nullptr) return -1;
  *device = {kDLCUDA, static_cast<int32_t>(PyLong_AsLong(ordinal))};
  Py_DECREF(ordinal);
  return 0;
}

int to_dltensor(void* object, DLTensor* out) {
  if (of_torch->dltensor_from_py_object_no_sync(object, out) != 0) return -1;
  return show_as_cuda(static_cast<PyObject*>(object), &out->device);
}

int to_managed(void* object, DLManagedTensorVersioned** out) {
  if (of_torch->managed_tensor_from_py_object_no_sync(object, out) != 0) return -1;
  return show_as_cuda(static_cast<PyObject*>(object), &(*out)->dl_tensor.device);
}

int current_stream(DLDeviceType type, int32_t device, void** out) {
  if (type != kDLCUDA) return of_torch->current_work_stream(type, device, out);
  *out = current_streams[static_cast<std::size_t>(device)];
  return 0;
}

struct Storage {
  DLManagedTensor managed;
  int64_t bytes;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The exchange API of the stand-in, based on torch's own.
PyObject* cuda_double_exchange_api(PyObject* capsule) {
  of_torch =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (of_torch == nullptr) return nullptr;
  api = *of_torch;
  api.header.prev_api = nullptr;
  api.dltensor_from_py_object_no_sync = to_dltensor;
  api.managed_tensor_from_py_object_no_sync = to_managed;
  api.current_work_stream = current_stream;
  return PyCapsule_New(&api, "dlpack_exchange_api", nullptr);
}

// Device memory as a DLPack capsule of CPU bytes, freed by its last tensor.
PyObject* cuda_double_storage(int device, std::size_t bytes) {
  const CUstream stream = current_streams[static_cast<std::size_t>(device)];
  void* memory = cuda_double_allocate(device, stream, bytes);
  if (memory == nullptr) return PyErr_NoMemory();
  auto* storage = new Storage{{}, static_cast<int64_t>(bytes)};
  DLTensor& tensor = storage->managed.dl_tensor;
  tensor.data = memory;
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLUInt, 8, 1};
  tensor.shape = &storage->bytes;
  storage->managed.manager_ctx = storage;
  storage->managed.deleter = [](DLManagedTensor* self) {
    cuda_double_free(self->dl_tensor.data);
    delete static_cast<Storage*>(self->manager_ctx);
  };
  return PyCapsule_New(&storage->managed, "dltensor", nullptr);
}

// Presents a capsule's memory as CPU memory, which torch without CUDA accepts, and returns the
// device ordinal.
int cuda_double_show_as_cpu(PyObject* capsule) {
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  if (managed == nullptr) return -1;
  const int device = managed->dl_tensor.device.device_id;
  managed->dl_tensor.device = {kDLCPU, 0};
  return device;
}

// The reverse, for a capsule of a CPU tensor.
int cuda_double_show_as_cuda(PyObject* capsule, int device) {
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  if (managed == nullptr) return -1;
  managed->dl_tensor.device = {kDLCUDA, device};
  return 0;
}

void cuda_double_set_current_stream(int device, CUstream stream) {
  current_streams[static_cast<std::size_t>(device)] = stream;
}

CUstream cuda_double_current_stream(int device) {
  return current_streams[static_cast<std::size_t>(device)];
}

}  // extern "C"
#pragma GCC visibility pop
