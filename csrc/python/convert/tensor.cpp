#include "python/convert/tensor.h"

#include <dlpack/dlpack.h>
#include <pybind11/stl.h>

#include <unordered_map>

#include "python/convert/buffer.h"
#include "python/convert/integer.h"

namespace pynccl::python {

LastExchange last_exchange;
LastDType last_dtype;

namespace {

[[noreturn, gnu::cold, gnu::noinline]] void throw_unsupported(const char* argument,
                                                              const std::string& dtype) {
  throw py::value_error(std::string(argument) + ": dtype " + dtype +
                        " is not a dtype of NCCL: expected one of " + dtype_names());
}

std::string device_text(int type, int id) {
  switch (type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda:" + std::to_string(id);
    case kDLCUDAHost:
      return "pinned host memory";
    case kDLCUDAManaged:
      return "managed memory of cuda:" + std::to_string(id);
    default:
      return "DLPack device " + std::to_string(type) + ":" + std::to_string(id);
  }
}

// Looked up once per type. The type is kept alive so that no other type gets its address.
const DLPackExchangeAPI* find_exchange_api(PyTypeObject* type) {
  static auto& apis = *new std::unordered_map<PyTypeObject*, const DLPackExchangeAPI*>;
  const auto [found, added] = apis.try_emplace(type, nullptr);
  if (added) {
    Py_INCREF(type);
    const auto capsule = py::reinterpret_steal<py::object>(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
    if (capsule && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
      const auto* api = static_cast<const DLPackExchangeAPI*>(
          PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (api->header.version.major == DLPACK_MAJOR_VERSION && api->dltensor_from_py_object_no_sync)
        found->second = api;
    }
    PyErr_Clear();
  }
  last_exchange = {type, found->second};
  return found->second;
}

[[noreturn]] void throw_unknown(const TensorView& view, const DLTensor& tensor) {
  const bool named = view.owner && py::hasattr(view.owner, "dtype");
  throw_unsupported(view.argument,
                    named ? py::cast<std::string>(py::str(py::handle(view.owner).attr("dtype")))
                          : "code " + std::to_string(tensor.dtype.code) + " with " +
                                std::to_string(tensor.dtype.bits) + " bits");
}

std::string tuple_text(const std::int64_t* values, int count) {
  std::string text = "(";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

void from_array_interface(TensorView& view, const py::dict& interface, int device_type) {
  const auto shape = py::cast<std::vector<std::int64_t>>(interface["shape"]);
  const auto data = py::cast<py::tuple>(interface["data"]);
  const auto typestr = py::cast<std::string>(interface["typestr"]);
  const DType* dtype = find_dtype(typestr);
  // A type that NumPy does not define (ml_dtypes) has its name in the dtype only. Another byte
  // order is another type.
  if (!dtype && typestr.substr(0, 1) != ">" && py::hasattr(view.owner, "dtype"))
    dtype =
        &dtype_from_python(view.argument, py::object(py::handle(view.owner).attr("dtype")).ptr());
  if (!dtype) throw_unsupported(view.argument, typestr);

  std::vector<std::int64_t> strides;
  if (interface.contains("strides") && !interface["strides"].is_none())
    for (const auto& stride : interface["strides"]) {
      const auto bytes = py::cast<std::int64_t>(stride);
      const auto size = static_cast<std::int64_t>(dtype->size());
      strides.push_back(bytes % size ? -1 : bytes / size);
    }
  DLTensor tensor{};
  tensor.data = reinterpret_cast<void*>(py::cast<std::uintptr_t>(data[0]));
  tensor.device.device_type = static_cast<DLDeviceType>(device_type);
  tensor.ndim = static_cast<int>(shape.size());
  tensor.dtype = {dtype->code, dtype->bits, 1};
  tensor.shape = const_cast<std::int64_t*>(shape.data());
  tensor.strides = strides.empty() ? nullptr : strides.data();
  fill(view, tensor);
  view.readonly = py::cast<bool>(data[1]);
}

void from_dlpack(TensorView& view) {
  const py::handle owner(view.owner);
  const auto device = py::cast<py::tuple>(owner.attr("__dlpack_device__")());
  // Stream -1: the producer does not synchronise. The stream of the call determines the order.
  const bool cuda = py::cast<int>(device[0]) == kDLCUDA;
  const py::object capsule =
      owner.attr("__dlpack__")(py::arg("stream") = cuda ? py::object(py::int_(-1)) : py::none());
  const auto* managed =
      static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (!managed) throw py::error_already_set();
  fill(view, managed->dl_tensor);  // the owner keeps the memory; the capsule frees the struct
}

void from_address(TensorView& view, PyObject* count, PyObject* dtype) {
  if (!count || !dtype)
    throw py::type_error(std::string(view.argument) +
                         ": an integer address needs count= and dtype=");
  view.dtype = &dtype_from_python("dtype", dtype);
  view.data =
      reinterpret_cast<char*>(integer_from_python<std::uintptr_t>(view.argument, view.owner));
  view.count = integer_from_python<std::size_t>("count", count) * view.dtype->width;
  if (!view.data && view.count)
    throw py::value_error(std::string(view.argument) + ": the address is 0");
}

// The array interface of an object under this name; null where there is none or reading it raises
// (torch's does for CPU tensors).
py::object interface_of(PyObject* object, const char* name) {
  auto found = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object, name));
  if (!found) PyErr_Clear();
  return found;
}

// Reads a buffer that is not a tensor with the exchange API.
void view_other(TensorView& view, PyObject* object, PyObject* count, PyObject* dtype) {
  if (PyLong_CheckExact(object)) return from_address(view, count, dtype);
  if (count || dtype)
    throw py::type_error(std::string(view.argument) +
                         ": count= and dtype= are for an integer address only");
  if (py::isinstance<Buffer>(object)) {
    py::cast<const Buffer&>(py::handle(object)).fill(view);
  } else if (const auto cuda = interface_of(object, "__cuda_array_interface__")) {
    from_array_interface(view, cuda, kDLCUDA);
    view.device_type = kDLCUDA;
    view.device_id = -1;  // not in the interface: check_placement() asks the driver
  } else if (const auto host = interface_of(object, "__array_interface__")) {
    from_array_interface(view, host, kDLCPU);
  } else if (py::hasattr(object, "__dlpack__")) {
    from_dlpack(view);
  } else {
    throw_type_error(view.argument, "a tensor, an array or an address", object);
  }
}

int device_of(const char* address, const Library& library) {
  int id = 0;
  DRIVER_CHECK(library, PointerGetAttribute,
               (&id, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(address)));
  return id;
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_misplaced(const TensorView& view, int id,
                                                            const Library& library, int device) {
  const bool host = library.memory() == Memory::kHost;
  throw py::value_error(std::string(view.argument) + ": is on " +
                        device_text(view.device_type, id) + ", the communicator is on " +
                        (host ? "cpu" : device_text(kDLCUDA, device)));
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_too_new(const TensorView& view,
                                                          const Library& library) {
  throw py::value_error(std::string(view.argument) + ": dtype " + view.dtype->name +
                        " needs NCCL " + version_text(view.dtype->since) + ", the loaded one is " +
                        version_text(library.version()));
}

}  // namespace

namespace tensor_mistakes {

// The framework has no memory for this tensor (sparse, meta, ...). The text is the first line of
// its error, after the name of the argument.
void throw_refused(const char* argument) {
  const py::error_already_set error;
  const std::string reason = py::cast<std::string>(py::str(error.value()));
  throw py::value_error(std::string(argument) + ": " + reason.substr(0, reason.find('\n')));
}

void throw_strided(const TensorView& view, const DLTensor& tensor) {
  throw py::value_error(std::string(view.argument) + ": must be contiguous, has shape " +
                        tuple_text(tensor.shape, tensor.ndim) + " and strides " +
                        tuple_text(tensor.strides, tensor.ndim));
}

void throw_no_storage(const TensorView& view) {
  throw py::value_error(std::string(view.argument) + ": has no storage");
}

void throw_readonly(const TensorView& view) {
  throw py::value_error(std::string(view.argument) + ": is read-only");
}

}  // namespace tensor_mistakes

void look_up_dtype(const TensorView& view, const DLTensor& tensor) {
  const DType* found = find_dtype(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
  if (!found) throw_unknown(view, tensor);
  last_dtype = {std::bit_cast<std::uint32_t>(tensor.dtype), found};
}

void view_uncached(TensorView& view, PyObject* count, PyObject* dtype) {
  const DLPackExchangeAPI* api = find_exchange_api(Py_TYPE(view.owner));
  if (api && !count && !dtype) return view_exchanged(view, api);
  view_other(view, view.owner, count, dtype);
}

void check_placement_slowly(TensorView& view, const Library& library, int device) {
  if (library.version() < view.dtype->since) throw_too_new(view, library);
  const bool host = library.memory() == Memory::kHost;
  const bool cuda = view.device_type == kDLCUDA || view.device_type == kDLCUDAManaged;
  // An array of no elements has no address.
  if (cuda && view.device_id < 0 && !host)
    view.device_id = view.count ? device_of(view.data, library) : device;
  if (!cuda || view.device_id != device || host)
    throw_misplaced(view, view.device_id, library, device);
}

}  // namespace pynccl::python
