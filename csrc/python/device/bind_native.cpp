// Stream.launch_native(): calls C functions on a stream, without the GIL.
#include <mutex>
#include <vector>

#include "comm/graph.h"
#include "comm/stream.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/convert/integer.h"

namespace pynccl::python {
namespace {

// A call that keeps Python objects alive until it has run. The next holder of the GIL releases
// them, so that the stream's thread does not wait for it.
struct NativeCall {
  CUhostFn function;
  void* argument;
  PyObject* kept;
};

std::mutex finished_mutex;
std::vector<PyObject*>& finished() {
  static auto& all = *new std::vector<PyObject*>;  // the streams may outlive static objects
  return all;
}

int release_finished(void*) {
  std::vector<PyObject*> released;
  {
    const std::lock_guard lock(finished_mutex);
    released.swap(finished());
  }
  for (PyObject* object : released) Py_DECREF(object);
  return 0;
}

void run(void* data) {
  const std::unique_ptr<NativeCall> call(static_cast<NativeCall*>(data));
  call->function(call->argument);
  const std::lock_guard lock(finished_mutex);
  finished().push_back(call->kept);
  // If Python's list of pending calls is full, the next launch_native() releases them.
  if (Py_IsInitialized()) Py_AddPendingCall(&release_finished, nullptr);
}

// Whether an object is an instance of a class of a module. Does not import the module.
bool is_instance(const py::object& object, const char* module, const char* type) {
  const py::object modules = py::module_::import("sys").attr("modules");
  return modules.contains(module) && py::isinstance(object, modules[module].attr(type));
}

// The address of a C function. Appends the objects that keep its code alive to kept.
std::uintptr_t function_from_python(const py::object& object, py::list& kept) {
  std::uintptr_t address = 0;
  if (PyIndex_Check(object.ptr())) {
    address = integer_from_python<std::uintptr_t>("function", object.ptr());
  } else if (is_instance(object, "ctypes", "_CFuncPtr")) {
    const py::buffer_info content = py::reinterpret_borrow<py::buffer>(object).request();
    address = *static_cast<const std::uintptr_t*>(content.ptr);
    kept.append(object);
  } else if (py::hasattr(object, "address")) {  // numba.cfunc
    address = integer_from_python<std::uintptr_t>("function", object.attr("address").ptr());
    kept.append(object);
  } else {
    throw_type_error("function", "the address of a C function", object.ptr());
  }
  if (address == 0) throw py::value_error("function: the address is 0");
  return address;
}

std::uintptr_t argument_from_python(const py::object& object, py::list& kept) {
  // NumPy integers support the buffer protocol, and NumPy arrays define __index__.
  const bool has_memory = PyObject_CheckBuffer(object.ptr());
  if (PyIndex_Check(object.ptr()) && (!has_memory || is_instance(object, "numpy", "generic")))
    return integer_from_python<std::uintptr_t>("argument", object.ptr());
  if (!has_memory)
    throw_type_error("argument", "an address or an object with the buffer protocol", object.ptr());
  // The view keeps the memory at its address: a bytearray cannot be resized.
  auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(object.ptr()));
  if (!view) throw py::error_already_set();
  const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view.ptr());
  if (!PyBuffer_IsContiguous(buffer, 'C'))
    throw py::value_error("argument: its memory is not contiguous");
  kept.append(view);
  return reinterpret_cast<std::uintptr_t>(buffer->buf);
}

void launch_native(const Stream& stream, const py::object& function, const py::object& argument) {
  release_finished(nullptr);
  py::list kept;
  const auto call = reinterpret_cast<CUhostFn>(function_from_python(function, kept));
  auto* const data = reinterpret_cast<void*>(argument_from_python(argument, kept));
  if (kept.empty()) {
    const GilReleased released;
    return stream.launch_host_function(call, data);
  }
  const CUstreamCaptureStatus status = stream.capture_status();
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
    if (!Graph::keep_alive(stream.library(), stream.handle(), hold(py::object(kept))) &&
        status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
      throw py::value_error(
          "stream: it is captured, but not by capture(), which would keep the argument alive");
    const GilReleased released;
    return stream.launch_host_function(call, data);
  }
  auto launched = std::make_unique<NativeCall>(NativeCall{call, data, kept.inc_ref().ptr()});
  try {
    const GilReleased released;
    stream.launch_host_function(&run, launched.get());
  } catch (...) {
    kept.dec_ref();
    throw;
  }
  static_cast<void>(launched.release());  // run() deletes it
}

}  // namespace

void bind_native(py::module_&) {
  add_method<Stream>(
      "launch_native", &launch_native, py::arg("function"), py::arg("argument") = 0,
      R"(Enqueue a call to a C function, void function(void* argument) (cuLaunchHostFunc).

The function runs in stream order, on a thread without the GIL. Inside capture(), every launch of
the graph calls it.

Args:
    function: the address as an integer, a ctypes function, or an object with an attribute "address"
        (numba.cfunc). The function must not call CUDA. The caller must keep the code of an integer
        address alive.
    argument: an address as an integer, or an object with the buffer protocol whose address is
        passed. The object is kept alive until the function has run; in a graph, as long as the
        graph.

Raises:
    TypeError: an invalid argument.
    ValueError: the address of the function is 0, the memory is not contiguous, the stream is
        closed, or it is being captured other than by capture() and an object must be kept alive.
    DriverError: the driver failed.)");
}

}  // namespace pynccl::python
