#include "python/convert/interfaces.h"

#include <dlpack/dlpack.h>

#include <limits>
#include <vector>

#include "python/call/errors.h"
#include "python/call/modules.h"
#include "python/convert/integer.h"

namespace pynccl::python {
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

}  // namespace

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

}  // namespace pynccl::python
