// The slow path of view_tensor(): selects the reader for a type.
#include <dlpack/dlpack.h>

#include <array>
#include <utility>

#include "python/call/errors.h"
#include "python/call/modules.h"
#include "python/convert/buffer.h"
#include "python/convert/cupy_array.h"
#include "python/convert/integer.h"
#include "python/convert/interfaces.h"
#include "python/convert/numpy_array.h"
#include "python/convert/tensor.h"
#include "python/convert/torch_tensor.h"

namespace pynccl::python {

LastExchange last_exchange;

namespace {

using View = void (*)(TensorView&);

// How the instances of a type are read: by view(), or by DLPack's exchange API.
struct Reader {
  PyTypeObject* type = nullptr;  // a reference, so that no other type gets its address
  View view = nullptr;
  LastExchange exchange;
};

// A cache of readers by type.
std::array<Reader, 16> readers;

Reader& slot_of(PyTypeObject* type) {
  return readers[reinterpret_cast<std::uintptr_t>(type) / 64 % readers.size()];
}

// Returns nullptr if the type has no exchange API or one of another major version.
const DLPackExchangeAPI* find_exchange_api(PyTypeObject* type) {
  static constinit Name name("__dlpack_c_exchange_api__");
  if (!_PyType_Lookup(type, name.get())) return nullptr;
  const auto capsule = py::reinterpret_steal<py::object>(
      PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name.get()));
  if (!capsule) PyErr_Clear();
  if (!capsule || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* api = static_cast<const DLPackExchangeAPI*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  const bool known =
      api->header.version.major == DLPACK_MAJOR_VERSION && api->dltensor_from_py_object_no_sync;
  return known ? api : nullptr;
}

// Selects the reader of a type and caches it. Returns false if view_other() must read its
// instances.
bool find_reader(PyTypeObject* type, Reader& found) {
  found = {};
  found.type = type;
  if (const DLPackExchangeAPI* api = find_exchange_api(type)) {
    found.exchange = {type, api, {}};
    if (!torch_tensor::find_keys(type, api, found.exchange.keys)) return false;
  } else if (numpy_array::reads(type)) {
    found.view = &numpy_array::view;
  } else if (cupy_array::reads(type)) {
    found.view = &cupy_array::view;
  } else {
    return false;
  }
  Py_INCREF(type);
  const Reader before = std::exchange(slot_of(type), found);
  if (last_exchange.type == before.type) last_exchange = {};
  Py_XDECREF(before.type);  // may run Python code
  return true;
}

void view_address(TensorView& view, PyObject* count, PyObject* dtype) {
  if (!count || !dtype)
    throw py::type_error(std::string(view.argument) +
                         ": an integer address needs count= and dtype=");
  view.dtype = &dtype_from_python("dtype", dtype);
  view.data =
      reinterpret_cast<char*>(integer_from_python<std::uintptr_t>(view.argument, view.owner));
  view.count = integer_from_python<std::size_t>("count", count);
  std::size_t end = 0;
  if (__builtin_mul_overflow(view.count, view.dtype->size(), &end) ||
      __builtin_add_overflow(end, reinterpret_cast<std::uintptr_t>(view.data), &end))
    throw py::value_error("count: " + std::to_string(view.count) +
                          " elements end after the last address");
  view.count *= view.dtype->width;
  if (!view.data && view.count)
    throw py::value_error(std::string(view.argument) + ": the address is 0");
}

// Reads a buffer whose type has no cached reader.
void view_other(TensorView& view, Owners& owners) {
  if (py::isinstance<Buffer>(view.owner))
    return py::cast<const Buffer&>(py::handle(view.owner)).fill(view);
  numpy_array::refuse(view.argument, view.owner);
  PyTypeObject* type = Py_TYPE(view.owner);
  if (torch_tensor::is_type(type)) torch_tensor::check_slowly(view.argument, view.owner);
  if (const DLPackExchangeAPI* api = find_exchange_api(type))
    return view_exchanged(view, {type, api, {}});
  if (!view_interface(view, owners))
    throw_type_error(view.argument, "a tensor, an array or an address", view.owner);
}

}  // namespace

void view_uncached(TensorView& view, Owners& owners, PyObject* count, PyObject* dtype) {
  if (PyLong_CheckExact(view.owner)) return view_address(view, count, dtype);
  if (count || dtype)
    throw py::type_error(std::string(view.argument) +
                         ": count= and dtype= are only allowed with an integer address");
  PyTypeObject* type = Py_TYPE(view.owner);
  Reader reader = slot_of(type);
  if (reader.type != type && !find_reader(type, reader)) return view_other(view, owners);
  if (reader.view) return reader.view(view);
  if (slot_of(type).type == type) last_exchange = reader.exchange;
  view_exchanged(view, reader.exchange);
}

}  // namespace pynccl::python
