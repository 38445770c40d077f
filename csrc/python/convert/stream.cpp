#include "python/convert/stream.h"

#include <dlpack/dlpack.h>

#include "comm/stream.h"
#include "python/convert/integer.h"

namespace pynccl::python {

namespace {

std::uintptr_t handle_of(const py::handle& stream, const char* attribute) {
  return integer_from_python<std::uintptr_t>("stream", py::object(stream.attr(attribute)).ptr());
}

}  // namespace

cudaStream_t stream_from_python(PyObject* stream, const Library& library) {
  std::uintptr_t handle = 0;
  const py::handle object(stream);
  if (PyLong_Check(stream)) {
    handle = integer_from_python<std::uintptr_t>("stream", stream);
  } else if (py::isinstance<Stream>(object)) {
    const auto& own = py::cast<const Stream&>(object);
    if (&own.library() != &library)
      throw_value_error("stream", "belongs to ", own.library().path(), ", the communicator to ",
                        library.path());
    return own.handle();
  } else if (py::hasattr(object, "__cuda_stream__")) {
    const py::object protocol = object.attr("__cuda_stream__")();
    if (!PyTuple_Check(protocol.ptr()) || PyTuple_GET_SIZE(protocol.ptr()) != 2)
      throw_type_error("stream: __cuda_stream__()", "a tuple of a version and a handle",
                       protocol.ptr());
    handle = integer_from_python<std::uintptr_t>("stream", PyTuple_GET_ITEM(protocol.ptr(), 1));
  } else if (py::hasattr(object, "cuda_stream")) {
    handle = handle_of(object, "cuda_stream");  // torch.cuda.Stream
  } else if (py::hasattr(object, "ptr")) {
    handle = handle_of(object, "ptr");  // cupy.cuda.Stream
  } else {
    throw_type_error("stream", "a stream, an object with __cuda_stream__ or an integer", stream);
  }
  return reinterpret_cast<cudaStream_t>(handle);
}

cudaStream_t current_stream(const DLPackExchangeAPI& api, const DLDevice& device) {
  void* current = nullptr;
  if (api.current_work_stream(device.device_type, device.device_id, &current) != 0)
    throw py::error_already_set();
  return static_cast<cudaStream_t>(current);
}

cudaStream_t captured_stream(const Library& library, int device) noexcept {
  if (library.memory() == Memory::kHost || !last_exchange.api) return nullptr;
  void* current = nullptr;
  if (last_exchange.api->current_work_stream(kDLCUDA, device, &current) != 0) PyErr_Clear();
  const auto stream = static_cast<cudaStream_t>(current);
  return capture_id(library, stream) ? stream : nullptr;
}

cudaStream_t current_stream(const TensorView& view) {
  if (view.api)
    return current_stream(*view.api, {static_cast<DLDeviceType>(view.device_type), view.device_id});
  PyTypeObject* type = Py_TYPE(view.owner);
  if (cupy_array::is_type(type)) return cupy_array::current_stream(view.device_id);
  // torch has no exchange API before 2.10.
  if (torch_tensor::is_type(type)) {
    const py::object current =
        py::module_::import("torch.cuda").attr("current_stream")(view.device_id);
    return reinterpret_cast<cudaStream_t>(py::cast<std::uintptr_t>(current.attr("cuda_stream")));
  }
  throw py::type_error("stream: is required, since " + std::string(view.argument) + " (" +
                       type->tp_name + ") has no current stream");
}

}  // namespace pynccl::python
