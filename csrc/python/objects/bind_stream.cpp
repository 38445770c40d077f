// The classes Stream and Event, on either provider.
#include "core/stream.h"

#include "core/clock.h"
#include "core/graph.h"
#include "core/trace.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/convert/stream.h"
#include "python/objects/bind.h"

namespace pynccl::python {
namespace {

// Called on a stream's worker thread; takes over a reference of the callable.
void call_once(void* data) {
  const GilAcquired gil;
  auto* const callable = static_cast<PyObject*>(data);
  call_reporting(callable);
  gil::or_sleep([&] { Py_DECREF(callable); });
}

// The same for a callable that a graph holds.
void call_again(void* data) {
  {
    const GilAcquired gil;
    Py_INCREF(static_cast<PyObject*>(data));
  }
  call_once(data);
}

// Captures the call into a graph, which keeps the function.
void capture(const Stream& stream, const py::function& callable) {
  const bool valid = stream.capture_status() == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!Graph::hold(stream.library(), stream.handle(), hold(py::object(callable))) && valid)
    throw py::value_error(
        "stream: it is captured, but not by capture(), which would keep the function alive");
  const GilReleased released;
  stream.launch_host_function(&call_again, callable.ptr());
}

void launch(const Stream& stream, const py::function& callable) {
  if (stream.capture_status() != CU_STREAM_CAPTURE_STATUS_NONE) return capture(stream, callable);
  PyObject* reference = callable.inc_ref().ptr();
  try {
    const GilReleased released;
    stream.launch_host_function(&call_once, reference);
  } catch (...) {
    callable.dec_ref();
    throw;
  }
}

}  // namespace

void bind_stream(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  py::class_<Stream, std::shared_ptr<Stream>> stream(
      m, "Stream", R"(A stream: a queue that runs work in order (cudaStream_t).

On GPUs a CUDA stream (cuStreamCreateWithPriority, not synchronised with the default stream); on
CPUs a queue with a worker thread. Pass it as stream= to a collective. It has __cuda_stream__, so
torch and CuPy accept it.)");
  py::class_<Event, std::shared_ptr<Event>> event(
      m, "Event", R"(A point in a stream that streams and threads can wait for (cudaEvent_t).)");

  stream
      .def(py::init<std::shared_ptr<Library>, int, int>(), py::arg("library"),
           py::arg("device") = -1, py::arg("priority") = 0)
      .def_property_readonly(
          "handle", [](const Stream& s) { return reinterpret_cast<std::uintptr_t>(s.handle()); },
          "The cudaStream_t as an integer.")
      .def_property_readonly("device", &Stream::device, "The device's ordinal.")
      .def_property_readonly("library", &Stream::shared_library, "The Library of its provider.")
      .def_property_readonly("priority", &Stream::priority,
                             "The priority on the device (cuStreamGetPriority).")
      .def("__cuda_stream__",
           [](const Stream& s) {
             return py::make_tuple(0, reinterpret_cast<std::uintptr_t>(s.handle()));
           })
      .def("synchronize", &Stream::synchronize, Release(),
           R"(Wait until all enqueued work is done (cuStreamSynchronize).

Raises:
    ValueError: the stream is closed.
    DriverError: the driver failed.
    NcclTimeoutError: an operation on the stream took longer than its time limit.)")
      .def("query", &Stream::query, Release(), R"(Whether all enqueued work is done (cuStreamQuery).

Returns:
    True where it is done.

Raises:
    ValueError: the stream is closed.
    DriverError: the driver failed.
    NcclTimeoutError: an operation on the stream took longer than its time limit.)")
      .def("wait", &Stream::wait, py::arg("event"), Release(),
           R"(Make work that is enqueued later wait for an event (cuStreamWaitEvent).

Args:
    event: an Event; its last recorded point counts. An event without one is not waited for.

Raises:
    ValueError: the stream or the event is closed.
    DriverError: the driver failed.)")
      .def("launch", &launch, py::arg("function"),
           R"(Enqueue a call of a Python function (cuLaunchHostFunc).

Inside capture() every launch of the graph calls it.

Args:
    function: called without arguments; it must not call CUDA or a collective. Its exceptions go to
        sys.unraisablehook.

Raises:
    ValueError: the stream is closed, or captured other than by capture().
    DriverError: the driver failed.)")
      .def("close", &Stream::close, Release(),
           R"(Free the stream (cuStreamDestroy). Enqueued work still runs. Closing twice is allowed.

Raises:
    DriverError: the driver failed.)");

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
            const GilReleased released;
            const std::int64_t now = Trace::timed() ? precise_time() : 0;
            e.record(handle);
            e.note_time(now);
          },
          py::arg("stream"), R"(Record the present end of a stream (cuEventRecord).

Args:
    stream: a stream in any form that a collective takes.

Raises:
    TypeError, ValueError: stream is not a stream, or the event or the stream is closed.
    DriverError: the driver failed.)")
      .def("synchronize", &Event::synchronize, Release(),
           R"(Wait until the recorded point is reached (cuEventSynchronize).

Raises:
    ValueError: the event is closed.
    DriverError: the driver failed.
    NcclTimeoutError: an operation on the stream took longer than its time limit.)")
      .def("query", &Event::query, Release(),
           R"(Whether the recorded point is reached (cuEventQuery).

Returns:
    True where it is reached, and where nothing was recorded.

Raises:
    ValueError: the event is closed.
    DriverError: the driver failed.)")
      .def("elapsed_time", &Event::elapsed_seconds, py::arg("end"), Release(),
           R"(The time between two events (cuEventElapsedTime).

Args:
    end: the later event. Both are made with timing=True and recorded.

Returns:
    Seconds.

Raises:
    ValueError: an event is closed.
    DriverError: an event was made without timing, or is not recorded or not reached.)")
      .def("close", &Event::close, R"(Free the event (cuEventDestroy). Closing twice is allowed.

Raises:
    DriverError: the driver failed.)");
}

}  // namespace pynccl::python
