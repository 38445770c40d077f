// TensorView: address, size, dtype and device of a buffer, read from a Python object. This header
// contains the fast path, for a type with DLPack's C exchange API that is the type of the previous
// tensor. readers.cpp contains the rest.
#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <bit>
#include <cstddef>

#include "nccl/library.h"
#include "python/convert/dtype.h"
#include "python/convert/torch_tensor.h"

namespace pynccl::python {

// References to owners of a call's buffers that the caller does not hold, such as the capsule of
// __dlpack__(). They are kept until the operation is done.
class Owners {
 public:
  Owners() = default;
  ~Owners() {
    if (list_) [[unlikely]]
      Py_DECREF(list_);
  }
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  void add(const py::object& owner) {
    if (!list_ && !(list_ = PyList_New(0))) throw py::error_already_set();
    if (PyList_Append(list_, owner.ptr()) != 0) throw py::error_already_set();
  }
  // All owners as one object; nullptr if there are none, as for most arrays.
  PyObject* get() const { return list_; }
  py::object object() const { return py::reinterpret_borrow<py::object>(list_ ? list_ : Py_None); }

 private:
  PyObject* list_ = nullptr;
};

struct TensorView {
  char* data = nullptr;
  std::size_t count = 0;  // elements of dtype->nccl
  const DType* dtype = nullptr;
  int device_type = 0;  // DLDeviceType; 0 for an integer address, whose device is unknown
  int device_id = 0;
  bool readonly = false;
  const DLPackExchangeAPI* api = nullptr;  // provides the current stream; may be null
  PyObject* owner = nullptr;               // borrowed from the call
  const char* argument = "";               // the parameter's name, for messages

  std::size_t nbytes() const { return count * dtype->size() / dtype->width; }
};

// The exchange API of the previous tensor's type: a cache of one entry.
struct LastExchange {
  PyTypeObject* type = nullptr;
  const DLPackExchangeAPI* api = nullptr;  // nullptr: there was no such tensor
  torch_tensor::Keys keys;
};
extern LastExchange last_exchange;

// The dtype of the previous tensor: a cache of one entry. It lets the branch predictor run ahead,
// so a call does not wait for the load of the tensor's dtype.
struct LastDType {
  std::uint32_t packed = ~0u;  // a DLDataType; the initial value matches no tensor
  const DType* dtype = nullptr;
};
extern LastDType last_dtype;
void look_up_dtype(const TensorView& view, const DLTensor& tensor);  // throws ValueError

// The errors of a tensor, as ValueError.
namespace tensor_mistakes {
[[noreturn, gnu::cold]] void throw_refused(const char* argument);
[[noreturn, gnu::cold]] void throw_strided(const TensorView& view, const DLTensor& tensor);
[[noreturn, gnu::cold]] void throw_no_storage(const TensorView& view);
[[noreturn, gnu::cold]] void throw_readonly(const TensorView& view);
}  // namespace tensor_mistakes

// The number of elements of a tensor; -1 if it is not contiguous.
[[gnu::always_inline]] inline std::int64_t contiguous_elements(const DLTensor& tensor) {
  std::int64_t elements = 1;
  bool contiguous = true;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.strides && tensor.shape[i] != 1) contiguous &= tensor.strides[i] == elements;
    elements *= tensor.shape[i];
  }
  return contiguous || elements == 0 ? elements : -1;
}

inline bool like_last_dtype(const DLTensor& tensor) {
  return std::bit_cast<std::uint32_t>(tensor.dtype) == last_dtype.packed;
}

// Fills the view from a DLTensor.
[[gnu::always_inline]] inline void fill(TensorView& view, const DLTensor& tensor) {
  const std::int64_t elements = contiguous_elements(tensor);
  if (elements < 0) [[unlikely]]
    tensor_mistakes::throw_strided(view, tensor);
  if (!like_last_dtype(tensor)) [[unlikely]]
    look_up_dtype(view, tensor);
  view.dtype = last_dtype.dtype;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.count = static_cast<std::size_t>(elements) * view.dtype->width;
  view.device_type = tensor.device.device_type;
  view.device_id = tensor.device.device_id;
  if (elements && !tensor.data) [[unlikely]]
    tensor_mistakes::throw_no_storage(view);
}

// Reads a tensor through the exchange API of its type.
[[gnu::always_inline]] inline void view_exchanged(TensorView& view, const LastExchange& exchange) {
  DLTensor tensor;
  if (exchange.keys.refuse(view.owner)) [[unlikely]]
    torch_tensor::throw_refused(view.argument, view.owner);
  if (exchange.api->dltensor_from_py_object_no_sync(view.owner, &tensor) != 0) [[unlikely]]
    tensor_mistakes::throw_refused(view.argument);
  view.api = exchange.api;
  fill(view, tensor);
}

// The part of the reader of CuPy arrays that finds their current stream.
namespace cupy_array {
bool is_type(PyTypeObject* type);  // whether it is cupy.ndarray or a subclass
cudaStream_t current_stream(int device);
}  // namespace cupy_array

// The slow path of view_tensor(), for every other buffer.
void view_uncached(TensorView& view, Owners& owners, PyObject* count, PyObject* dtype);

// Reads a buffer. The object and the objects added to owners must live until the operation is done.
// count and dtype belong to an integer address and are null otherwise. Throws TypeError and
// ValueError that name the argument if it is not a buffer, not contiguous or of a dtype that NCCL
// does not support.
[[gnu::always_inline]] inline void view_tensor(TensorView& view, Owners& owners,
                                               const char* argument, PyObject* object,
                                               PyObject* count, PyObject* dtype) {
  view.argument = argument;
  view.owner = object;
  if (Py_TYPE(object) != last_exchange.type || !last_exchange.api || count || dtype) [[unlikely]]
    return view_uncached(view, owners, count, dtype);
  view_exchanged(view, last_exchange);
}
inline TensorView view_tensor(Owners& owners, const char* argument, PyObject* object,
                              PyObject* count = nullptr, PyObject* dtype = nullptr) {
  TensorView view;
  view_tensor(view, owners, argument, object, count, dtype);
  return view;
}

// Whether a communicator of the library on device can use memory of this DLPack device type and id.
[[gnu::always_inline]] inline bool is_placed(int type, int id, const Library& library, int device) {
  return library.memory() == Memory::kHost ? type == kDLCPU || type == kDLCUDAHost
                                           : type == kDLCUDA && id == device;
}

// The slow part of check_placement().
void check_placement_slowly(TensorView& view, const Library& library, int device);

// Throws ValueError if a communicator of the library on device cannot use the buffer, or the
// library is too old for its dtype. Sets view.device_id if it was unknown.
[[gnu::always_inline]] inline void check_placement(TensorView& view, const Library& library,
                                                   int device) {
  const bool placed =
      view.device_type == 0 || is_placed(view.device_type, view.device_id, library, device);
  if (!placed || library.version() < view.dtype->since) [[unlikely]]
    check_placement_slowly(view, library, device);
}

// Throws ValueError if the buffer is read-only.
inline void check_writable(const TensorView& view) {
  if (view.readonly) [[unlikely]]
    tensor_mistakes::throw_readonly(view);
}

}  // namespace pynccl::python
