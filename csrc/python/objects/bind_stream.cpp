// The classes Stream and Event: work queues of our own on either provider.
#include "core/stream.h"

#include "core/graph.h"
#include "python/call/errors.h"
#include "python/call/held.h"
#include "python/convert/stream.h"
#include "python/objects/bind.h"

namespace pynccl::python {
namespace {

// Calls a Python callable on a stream's worker. Nothing can be raised there: what it raises goes to
// sys.unraisablehook.
void call(const py::object& callable) {
  try {
    callable();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(callable);
  }
}

void call_once(void* data) {
  const py::gil_scoped_acquire gil;
  call(py::reinterpret_steal<py::object>(static_cast<PyObject*>(data)));
}

void call_again(void* data) {
  const py::gil_scoped_acquire gil;
  call(py::reinterpret_borrow<py::object>(static_cast<PyObject*>(data)));
}

// Into a graph, which keeps the callable for as long as it may be launched.
void capture(const Stream& stream, const py::function& callable) {
  const bool valid = stream.capture_status() == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!Graph::hold(stream.library(), stream.handle(), hold(py::object(callable))) && valid)
    throw py::value_error(
        "stream: it is being captured, but not by capture(): nobody would keep the function");
  const py::gil_scoped_release released;
  stream.launch_host_function(&call_again, callable.ptr());
}

void launch(const Stream& stream, const py::function& callable) {
  if (stream.capture_status() != CU_STREAM_CAPTURE_STATUS_NONE) return capture(stream, callable);
  PyObject* reference = callable.inc_ref().ptr();
  try {
    const py::gil_scoped_release released;
    stream.launch_host_function(&call_once, reference);
  } catch (...) {
    callable.dec_ref();
    throw;
  }
}

}  // namespace

void bind_stream(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Stream, std::shared_ptr<Stream>> stream(
      m, "Stream", R"(A stream of our own: a queue of work, in order.

On GPUs a CUDA stream (cuStreamCreateWithPriority, not synchronised with the default stream); on
CPUs a queue with a worker thread. Pass it as stream= to a collective. It also is an object with
__cuda_stream__, which torch and CuPy take.)");
  py::class_<Event, std::shared_ptr<Event>> event(
      m, "Event", R"(A point in a stream that others can wait for.)");

  stream
      .def(py::init<std::shared_ptr<Library>, int, int>(), py::arg("library"),
           py::arg("device") = -1, py::arg("priority") = 0)
      .def_property_readonly(
          "handle", [](const Stream& s) { return reinterpret_cast<std::uintptr_t>(s.handle()); },
          "The cudaStream_t as an integer.")
      .def_property_readonly("device", &Stream::device, "The device's ordinal.")
      .def_property_readonly("library", &Stream::shared_library, "The loaded NCCL.")
      .def_property_readonly("priority", &Stream::priority,
                             "The priority, as the device has it (cuStreamGetPriority).")
      .def("__cuda_stream__",
           [](const Stream& s) {
             return py::make_tuple(0, reinterpret_cast<std::uintptr_t>(s.handle()));
           })
      .def("synchronize", &Stream::synchronize, Release(),
           "Waits until all that was enqueued is done (cuStreamSynchronize).")
      .def("query", &Stream::query, Release(),
           "Whether all that was enqueued is done (cuStreamQuery).")
      .def("wait", &Stream::wait, py::arg("event"), Release(),
           "What is enqueued from now on waits for the event as it was last recorded "
           "(cuStreamWaitEvent).")
      .def("launch", &launch, py::arg("function"),
           "Enqueues a call of function() (cuLaunchHostFunc). It must not call CUDA or a "
           "collective.\nInside capture() the graph calls it in every launch.")
      .def("close", &Stream::close, Release(),
           "Lets what is enqueued run and frees the stream (cuStreamDestroy).");

  event
      .def(py::init<std::shared_ptr<Library>, int, bool>(), py::arg("library"),
           py::arg("device") = -1, py::arg("timing") = false)
      .def_property_readonly(
          "handle", [](const Event& e) { return reinterpret_cast<std::uintptr_t>(e.handle()); },
          "The cudaEvent_t as an integer.")
      .def(
          "record",
          [](const Event& e, const py::object& on) {
            const cudaStream_t handle = stream_from_python(on.ptr(), e.library());
            const py::gil_scoped_release released;
            e.record(handle);
          },
          py::arg("stream"), "Marks the point that the stream has reached so far (cuEventRecord).")
      .def("synchronize", &Event::synchronize, Release(),
           "Waits for the recorded point (cuEventSynchronize).")
      .def("query", &Event::query, Release(),
           "Whether the recorded point is reached (cuEventQuery).")
      .def("elapsed_time", &Event::elapsed_seconds, py::arg("end"), Release(),
           "Seconds from this event to end, both made with timing=True (cuEventElapsedTime).")
      .def("close", &Event::close, "Frees the event (cuEventDestroy).");
}

}  // namespace pynccl::python
