// The slow path of view_tensor(): the readers of NumPy arrays, of CuPy arrays and of objects with
// an array interface or __dlpack__, and the selection of the reader for a type.
#include <dlpack/dlpack.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "python/call/errors.h"
#include "python/call/modules.h"
#include "python/convert/buffer.h"
#include "python/convert/integer.h"
#include "python/convert/tensor.h"
#include "python/convert/torch_tensor.h"

namespace pynccl::python {

LastExchange last_exchange;

namespace {

// NumPy arrays, read from their C structure, whose layout is part of the ABI of NumPy 1 and 2.
// NumPy is not a dependency, neither to build nor to run: the class is looked up if NumPy is
// imported.
namespace numpy_array {

ModuleClass ndarray_class{"numpy", "ndarray"};
ModuleClass scalar_class{"numpy", "generic"};
ModuleClass masked_class{"numpy.ma", "MaskedArray"};
ModuleAttribute version{"numpy", "__version__"};

// The beginning of NumPy's PyArrayObject.
struct Array {
  PyObject_HEAD char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;  // in bytes
  PyObject* base;
  PyObject* descr;
  int flags;
};
constexpr int kContiguous = 0x1;
constexpr int kWriteable = 0x400;

const Array& array_of(PyObject* object) { return *reinterpret_cast<const Array*>(object); }

bool has_this_layout(PyTypeObject* ndarray) {
  PyObject* text = version.get();
  if (!text || ndarray->tp_basicsize < static_cast<Py_ssize_t>(sizeof(Array))) return false;
  const auto number = std::string(py::str(py::handle(text)));
  return number.starts_with("1.") || number.starts_with("2.");
}

// numpy.ndarray. Set once under the GIL, never released.
PyTypeObject* known = nullptr;
bool layout_is_right = false;

// A cache of dtypes by the address of NumPy's dtype object. Each row owns a reference to it.
struct Row {
  PyObject* descr = nullptr;
  const DType* dtype = nullptr;
};
std::array<Row, 16> rows;

Row& row_of(PyObject* descr) {
  return rows[reinterpret_cast<std::uintptr_t>(descr) / 32 % rows.size()];
}

[[gnu::noinline]] const DType& look_up(const char* argument, PyObject* descr) {
  const DType* dtype = &dtype_of_numpy(argument, descr);
  Py_INCREF(descr);
  const Row before = std::exchange(row_of(descr), {descr, dtype});
  Py_XDECREF(before.descr);  // may run Python code
  return *dtype;
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_not_contiguous(const TensorView& view) {
  const Array& array = array_of(view.owner);
  std::vector<std::int64_t> shape(array.dimensions, array.dimensions + array.nd);
  std::vector<std::int64_t> strides(array.strides, array.strides + array.nd);
  for (std::int64_t& stride : strides) stride /= static_cast<std::int64_t>(view.dtype->size());
  DLTensor tensor{};
  tensor.ndim = array.nd;
  tensor.shape = shape.data();
  tensor.strides = strides.data();
  tensor_mistakes::throw_strided(view, tensor);
}

// Whether view() can read instances of the type.
bool reads(PyTypeObject* type) {
  if (!known) {
    PyTypeObject* ndarray = ndarray_class.get();
    if (!ndarray) return false;
    Py_INCREF(ndarray);
    known = ndarray;
    layout_is_right = has_this_layout(ndarray);
  }
  return layout_is_right && PyType_IsSubtype(type, known) && !masked_class.is_base_of(type);
}

// Throws TypeError for array-like objects that cannot be shared: a scalar, whose memory is a
// temporary copy, and a masked array, whose mask would be ignored.
void refuse(const char* argument, PyObject* object) {
  if (scalar_class.is_base_of(Py_TYPE(object)))
    throw_type_error(argument, "an array; a NumPy scalar is a copy", object);
  if (masked_class.is_base_of(Py_TYPE(object)))
    throw_type_error(argument, "an array without a mask; pass its .data", object);
}

// The type of a NumPy dtype object, cached per object. Throws ValueError.
const DType& dtype_of(const char* argument, PyObject* descr) {
  const Row& row = row_of(descr);
  return row.descr == descr ? *row.dtype : look_up(argument, descr);
}

void view(TensorView& view) {
  const Array& array = array_of(view.owner);
  view.dtype = &dtype_of(view.argument, array.descr);
  if (!(array.flags & kContiguous)) [[unlikely]]
    throw_not_contiguous(view);
  std::size_t elements = 1;
  for (int i = 0; i < array.nd; ++i) elements *= static_cast<std::size_t>(array.dimensions[i]);
  view.data = array.data;
  view.count = elements * view.dtype->width;
  view.device_type = kDLCPU;
  view.readonly = !(array.flags & kWriteable);
}

}  // namespace numpy_array
}  // namespace

// CuPy arrays, read through their C-level attributes.
namespace cupy_array {
namespace {

ModuleClass ndarray_class{"cupy", "ndarray"};
Name contiguous{"_c_contiguous"}, data{"data"}, device_id{"device_id"}, dtype{"dtype"}, ptr{"ptr"},
    size{"size"};
PyObject* get_current_stream = nullptr;  // CuPy's; set under the GIL, never released

// Calls the getter of a C attribute directly, which is faster than a generic attribute lookup.
py::object get(PyObject* object, Name& name) {
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name.get());
  PyObject* value = nullptr;
  if (found && Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
    const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset;
    value = definition->get(object, definition->closure);
  } else {
    value = PyObject_GetAttr(object, name.get());
  }
  if (!value) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

template <class T>
T integer(const char* argument, PyObject* object, Name& name) {
  return integer_from_python<T>(argument, get(object, name).ptr());
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_not_contiguous(const TensorView& view) {
  const py::handle array(view.owner);
  throw_value_error(view.argument, "must be contiguous, has shape ",
                    std::string(py::str(array.attr("shape"))), " and strides of ",
                    std::string(py::str(array.attr("strides"))), " bytes");
}

}  // namespace

bool is_type(PyTypeObject* type) { return ndarray_class.is_base_of(type); }

cudaStream_t current_stream(int device) {
  if (!get_current_stream)
    get_current_stream =
        py::object(py::module_::import("cupy.cuda").attr("get_current_stream")).release().ptr();
  const py::object stream = py::handle(get_current_stream)(device);
  return reinterpret_cast<cudaStream_t>(integer<std::uintptr_t>("stream", stream.ptr(), ptr));
}

namespace {

// Whether view() can read instances of the type.
bool reads(PyTypeObject* type) { return is_type(type) && _PyType_Lookup(type, contiguous.get()); }

void view(TensorView& view) {
  PyObject* array = view.owner;
  view.dtype = &numpy_array::dtype_of(view.argument, get(array, dtype).ptr());
  if (!PyObject_IsTrue(get(array, contiguous).ptr())) [[unlikely]]
    throw_not_contiguous(view);
  const auto elements = integer<std::size_t>(view.argument, array, size);
  const py::object memory = get(array, data);
  const auto address = integer<std::uintptr_t>(view.argument, memory.ptr(), ptr);
  view.data = reinterpret_cast<char*>(address);
  view.count = elements * view.dtype->width;
  view.device_type = kDLCUDA;
  // An empty array may have no memory.
  view.device_id = elements ? integer<int>(view.argument, memory.ptr(), device_id) : -1;
}

}  // namespace
}  // namespace cupy_array

namespace {

// An array interface. Errors name the argument and the key.
class ArrayInterface {
 public:
  ArrayInterface(const char* argument, const char* name, py::object dict)
      : where_(std::string(argument) + ": " + name), dict_(std::move(dict)) {
    if (!PyDict_Check(dict_.ptr())) throw_type_error(where_.c_str(), "a dict", dict_.ptr());
  }

  py::object optional(const char* key) const {
    PyObject* value = PyDict_GetItemString(dict_.ptr(), key);
    return py::reinterpret_borrow<py::object>(value ? value : Py_None);
  }
  py::object required(const char* key) const {
    py::object value = optional(key);
    if (value.is_none()) throw py::value_error(where_ + " has no " + key);
    return value;
  }

  std::vector<std::int64_t> integers(const char* key, const py::object& value) const {
    const std::string name = where_ + "['" + key + "']";
    if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr()))
      throw_type_error(name.c_str(), "a tuple of integers", value.ptr());
    std::vector<std::int64_t> result;
    // A copy: the conversion of an item may run Python code that changes a list.
    for (const py::handle item : py::tuple(value))
      result.push_back(integer_from_python<std::int64_t>(name.c_str(), item.ptr()));
    return result;
  }

  const std::string& where() const { return where_; }

 private:
  std::string where_;
  py::object dict_;
};

// Validates the shape of a tensor from an untrusted producer.
void check_extents(const std::string& where, const DLTensor& tensor) {
  std::int64_t bytes = (tensor.dtype.bits + 7) / 8 * tensor.dtype.lanes;
  for (int i = 0; i < tensor.ndim; ++i) {
    const std::int64_t extent = tensor.shape[i];
    if (extent < 0)
      throw py::value_error(where + ": the shape contains " + std::to_string(extent) +
                            ", which is negative");
    if (extent && __builtin_mul_overflow(bytes, extent, &bytes))
      throw py::value_error(where + ": the size in bytes does not fit");
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) > std::numeric_limits<std::uintptr_t>::max() -
                                                          tensor.byte_offset -
                                                          static_cast<std::uintptr_t>(bytes))
    throw py::value_error(where + ": it ends after the last address");
}

const DType& dtype_of(const TensorView& view, const ArrayInterface& interface) {
  const py::object typestr = interface.required("typestr");
  if (!PyUnicode_Check(typestr.ptr()))
    throw_type_error((interface.where() + "['typestr']").c_str(), "a str", typestr.ptr());
  const char* text = PyUnicode_AsUTF8(typestr.ptr());
  if (!text) {
    PyErr_Clear();
    throw_unsupported_dtype(view.argument, std::string(py::repr(typestr)));
  }
  const py::object dtype = py::getattr(view.owner, "dtype", py::none());
  return dtype_of_numpy(view.argument, text, dtype.is_none() ? nullptr : dtype.ptr());
}

void from_array_interface(TensorView& view, const char* name, const py::object& dict,
                          DLDeviceType device_type) {
  const ArrayInterface interface(view.argument, name, dict);
  const DType& dtype = dtype_of(view, interface);
  if (!interface.optional("mask").is_none())
    throw py::value_error(interface.where() + " has a mask, which would be ignored");
  auto shape = interface.integers("shape", interface.required("shape"));
  const py::object data = interface.required("data");
  if (!PyTuple_Check(data.ptr()) || PyTuple_GET_SIZE(data.ptr()) != 2)
    throw_type_error((interface.where() + "['data']").c_str(), "a tuple of an address and a bool",
                     data.ptr());
  const auto items = py::reinterpret_borrow<py::tuple>(data);
  DLTensor tensor{};
  tensor.data = reinterpret_cast<void*>(integer_from_python<std::uintptr_t>(
      (interface.where() + "['data']").c_str(), py::object(items[0]).ptr()));
  const int readonly = PyObject_IsTrue(py::object(items[1]).ptr());
  if (readonly < 0) throw py::error_already_set();

  std::vector<std::int64_t> strides;
  const py::object given = interface.optional("strides");
  if (!given.is_none()) {
    strides = interface.integers("strides", given);
    if (strides.size() != shape.size())
      throw py::value_error(interface.where() + ": the shape has " + std::to_string(shape.size()) +
                            " dimensions, strides has " + std::to_string(strides.size()));
    const auto size = static_cast<std::int64_t>(dtype.size());
    for (std::int64_t& stride : strides) stride = stride % size ? -1 : stride / size;
  }
  tensor.device.device_type = device_type;
  tensor.ndim = static_cast<int>(shape.size());
  tensor.dtype = {dtype.code, dtype.bits, 1};
  tensor.shape = shape.data();
  tensor.strides = given.is_none() ? nullptr : strides.data();
  check_extents(interface.where(), tensor);
  fill(view, tensor);
  view.readonly = readonly;
}

void from_dlpack(TensorView& view, Owners& owners) {
  const std::string argument(view.argument);
  const py::handle owner(view.owner);
  const py::object device = owner.attr("__dlpack_device__")();
  if (!PyTuple_Check(device.ptr()) || PyTuple_GET_SIZE(device.ptr()) != 2)
    throw_type_error((argument + ": __dlpack_device__()").c_str(), "a tuple of two integers",
                     device.ptr());
  // Stream -1: the producer must not synchronize. The stream of the call determines the order.
  const bool cuda = integer_from_python<int>((argument + ": __dlpack_device__()").c_str(),
                                             PyTuple_GET_ITEM(device.ptr(), 0)) == kDLCUDA;
  const py::object capsule =
      owner.attr("__dlpack__")(py::arg("stream") = cuda ? py::object(py::int_(-1)) : py::none());
  const std::string where = argument + ": __dlpack__()";
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    throw_type_error(where.c_str(), "a capsule named dltensor", capsule.ptr());
  const DLTensor& tensor =
      static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->dl_tensor;
  if (tensor.ndim < 0 || (tensor.ndim && !tensor.shape))
    throw py::value_error(where + ": the tensor has no shape");
  check_extents(where, tensor);
  fill(view, tensor);
  owners.add(capsule);  // it may be the only owner of the memory
}

// Reads the first of __cuda_array_interface__, __array_interface__ and __dlpack__ that the object
// supports. The description is checked as far as possible. Returns false if it supports none.
bool view_interface(TensorView& view, Owners& owners) {
  static constinit Name cuda("__cuda_array_interface__"), host("__array_interface__"),
      dlpack("__dlpack__");
  if (const py::object interface = attribute_or_null(view.owner, cuda.get())) {
    from_array_interface(view, "__cuda_array_interface__", interface, kDLCUDA);
    view.device_id = -1;  // not part of the interface; check_placement() asks the driver
    owners.add(interface);
  } else if (const py::object other = attribute_or_null(view.owner, host.get())) {
    from_array_interface(view, "__array_interface__", other, kDLCPU);
    owners.add(other);
  } else if (attribute_or_null(view.owner, dlpack.get())) {
    from_dlpack(view, owners);
  } else {
    return false;
  }
  return true;
}

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
  // The error text of a missing attribute of a type costs more than a call.
  if (!_PyType_Lookup(type, name.get()) && !_PyType_Lookup(Py_TYPE(type), name.get()))
    return nullptr;
  const py::object capsule = attribute_or_null(reinterpret_cast<PyObject*>(type), name.get());
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
    throw_value_error("count", view.count, " elements end after the last address");
  view.count *= view.dtype->width;
  if (!view.data && view.count) throw_value_error(view.argument, "the address is 0");
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
