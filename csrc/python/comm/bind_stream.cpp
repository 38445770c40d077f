// The classes Stream, Event and Graph, for both providers.
#include "comm/stream.h"

#include <vector>

#include "comm/failed_streams.h"
#include "comm/graph.h"
#include "nccl/clock.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/group.h"
#include "python/convert/integer.h"
#include "python/convert/stream.h"
#include "watch/trace.h"

namespace pynccl::python {
namespace {

// A call to a Python function, enqueued on a stream.
struct StreamCall {
  std::shared_ptr<Library> library;
  PyObject* callable;
  CUstream stream;
  std::int64_t launched;
  std::shared_ptr<const Graph::Launches> launches;  // of the graph that contains the call
};

// Calls the function. Returns its exception as a new reference; null if it returns normally.
PyObject* raised_by(PyObject* callable, std::string& text) {
  PyObject* raised = nullptr;
  gil::or_sleep([&] {
    raised = call_reporting(callable);
    if (!raised) return;
    PyObject* const shown = PyObject_Repr(raised);
    const char* shown_text = shown ? PyUnicode_AsUTF8(shown) : nullptr;
    text = std::string("a function that the stream called has raised ") +
           (shown_text ? shown_text : Py_TYPE(raised)->tp_name);
    PyErr_Clear();
    Py_XDECREF(shown);
  });
  return raised;
}

// Called on a stream's thread, with the GIL. An exception becomes a failure of the stream.
void run_call(const StreamCall& call) {
  std::string text;
  PyObject* const raised = raised_by(call.callable, text);
  if (!raised) return;
  const auto failure = std::make_shared<const FunctionFailure>(
      text, hold(py::reinterpret_steal<py::object>(raised)));
  if (call.library->reports_failed_work())
    return call.library->fail_function(text, FailedFunctions::add(failure));
  std::int64_t since = call.launched;
  const std::vector<CUstream> streams =
      call.launches ? call.launches->streams(since) : std::vector<CUstream>{call.stream};
  FailedStreams::add(streams, since,
                     [failure](const std::string&) { throw FunctionFailure(*failure); });
}

void call_once(void* data) {
  const GilAcquired gil;
  const std::unique_ptr<StreamCall> call(static_cast<StreamCall*>(data));
  run_call(*call);
  gil::or_sleep([&] { Py_DECREF(call->callable); });
}

// The same for a call of a graph, which may be closed meanwhile.
void call_again(void* data) {
  const GilAcquired gil;
  const StreamCall call = *static_cast<const StreamCall*>(data);
  Py_INCREF(call.callable);
  run_call(call);
  gil::or_sleep([&] { Py_DECREF(call.callable); });
}

// Captures a call into a graph, which keeps held alive.
void capture(const Stream& stream, CUhostFn function, void* data, std::shared_ptr<void> held,
             const char* what) {
  const bool valid = stream.capture_status() == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!Graph::keep_alive(stream.library(), stream.handle(), std::move(held)) && valid)
    throw_value_error("stream", "it is captured, but not by capture(), which would keep the ", what,
                      " alive");
  const GilReleased released;
  stream.launch_host_function(function, data);
}

// Enqueues a call to a function, which takes ownership of the data and of a reference to kept.
template <class Data>
void launch_once(const Stream& stream, CUhostFn function, Data given, const py::object& kept) {
  auto data = std::make_unique<Data>(std::move(given));
  kept.inc_ref();
  try {
    const GilReleased released;
    stream.launch_host_function(function, data.get());
  } catch (...) {
    kept.dec_ref();
    throw;
  }
  static_cast<void>(data.release());
}

void launch(const Stream& stream, const py::function& callable) {
  if (stream.capture_status() == CU_STREAM_CAPTURE_STATUS_NONE)
    return launch_once(stream, &call_once,
                       StreamCall{stream.shared_library(), callable.ptr(), stream.handle(),
                                  precise_time(), nullptr},
                       callable);
  auto launches = Graph::launches(stream.library(), stream.handle());
  auto* const call = new StreamCall{stream.shared_library(), callable.inc_ref().ptr(),
                                    stream.handle(), 0, std::move(launches)};
  const std::shared_ptr<void> held(call, [](StreamCall* released) {
    const GilAcquired gil;
    Py_DECREF(released->callable);
    delete released;
  });
  capture(stream, &call_again, call, held, "function");
}

// A call that keeps a Python object alive until it has run.
struct NativeCall {
  CUhostFn function;
  void* argument;
  PyObject* kept;
};

void run(void* data) {
  const std::unique_ptr<NativeCall> call(static_cast<NativeCall*>(data));
  call->function(call->argument);
  release_soon(call->kept);
}

// Afterwards the objects of the operations before are released. The main thread, which releases
// them otherwise, may wait for this one.
template <typename T>
void synchronize(const T& stream_or_event) {
  {
    const GilReleased released;
    stream_or_event.synchronize();
  }
  release_finished();
}

bool is_numpy_scalar(const py::object& object) {
  const py::object modules = py::module_::import("sys").attr("modules");
  return modules.contains("numpy") && py::isinstance(object, modules["numpy"].attr("generic"));
}

// An address, or that of the memory of an object. Sets kept to an object that keeps the memory
// alive.
std::uintptr_t argument_from_python(const py::object& object, py::object& kept) {
  // NumPy integers support the buffer protocol, and NumPy arrays define __index__.
  const bool has_memory = PyObject_CheckBuffer(object.ptr());
  if (PyIndex_Check(object.ptr()) && (!has_memory || is_numpy_scalar(object)))
    return integer_from_python<std::uintptr_t>("argument", object.ptr());
  if (!has_memory)
    throw_type_error("argument", "an address or an object with the buffer protocol", object.ptr());
  // The view keeps the memory at its address: a bytearray cannot be resized.
  auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(object.ptr()));
  if (!view) throw py::error_already_set();
  const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view.ptr());
  if (!PyBuffer_IsContiguous(buffer, 'C'))
    throw_value_error("argument", "its memory is not contiguous");
  kept = std::move(view);
  return reinterpret_cast<std::uintptr_t>(buffer->buf);
}

void launch_native(const Stream& stream, const py::object& function, const py::object& argument) {
  release_finished();
  const auto address = integer_from_python<std::uintptr_t>("function", function.ptr());
  if (address == 0) throw_value_error("function", "the address is 0");
  const auto call = reinterpret_cast<CUhostFn>(address);
  py::object kept;
  auto* const data = reinterpret_cast<void*>(argument_from_python(argument, kept));
  if (!kept) {
    const GilReleased released;
    return stream.launch_host_function(call, data);
  }
  if (stream.capture_status() != CU_STREAM_CAPTURE_STATUS_NONE)
    return capture(stream, call, data, hold(kept), "argument");
  launch_once(stream, &run, NativeCall{call, data, kept.ptr()}, kept);  // run() deletes it
}

CUstreamCaptureMode mode_from_python(const std::string& mode) {
  if (mode == "global") return CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == "thread_local") return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  if (mode == "relaxed") return CU_STREAM_CAPTURE_MODE_RELAXED;
  throw_value_error("mode", "expected 'global', 'thread_local' or 'relaxed', got ",
                    std::string(py::repr(py::str(mode))));
}

// A graph with the stream that it was captured on, the default stream of its launches.
struct StreamGraph : Graph {
  StreamGraph(const std::shared_ptr<Library>& library, const py::object& on,
              CUstreamCaptureMode mode)
      : Graph(library, stream_from_python(on.ptr(), *library), device_of(on), mode),
        given_stream(on) {}

  static int device_of(const py::object& on) {
    if (py::isinstance<Stream>(on)) return py::cast<const Stream&>(on).device();
    for (const char* name : {"device_index", "device_id"})  // torch's and CuPy's
      if (const py::object device = py::getattr(on, name, py::none()); PyLong_Check(device.ptr()))
        return integer_from_python<int>("stream", device.ptr());
    return -1;
  }

  void enter() { begin(); }
  void exit(bool failed) {
    const GilReleased released;
    end(failed);
  }

  void launch_on(const py::object& on) const {
    const CUstream chosen = target(on);
    const GilReleased released;  // on CPUs the work may run in this call
    launch(chosen);
  }

  CUstream target(const py::object& on) const {
    if (Group::active())
      throw std::runtime_error("graph: it cannot be launched inside a group or a plan");
    return stream_from_python(on.is_none() ? given_stream.ptr() : on.ptr(), library());
  }

  py::object given_stream;
};

std::shared_ptr<StreamGraph> make_graph(const std::shared_ptr<Library>& library,
                                        const py::object& stream, const std::string& mode) {
  return std::make_shared<StreamGraph>(library, stream, mode_from_python(mode));
}

}  // namespace

void bind_stream(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  py::class_<Stream, std::shared_ptr<Stream>> stream(
      m, "Stream", R"(A stream: a queue that runs work in order (cudaStream_t).

On GPUs it is a CUDA stream (cuStreamCreateWithPriority) that does not synchronize with the default
stream. On CPUs it is a queue with a worker thread. Pass it as stream= to a collective. It
implements __cuda_stream__, so torch and CuPy accept it.)");
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
      .def("synchronize", &synchronize<Stream>,
           R"(Wait until all enqueued work is done (cuStreamSynchronize).

Raises:
    ValueError: the stream is closed.
    DriverError: the driver failed.
    NcclError: an operation on the stream failed. Raised once; the class gives the reason.)")
      .def("query", &Stream::query, Release(), R"(Whether all enqueued work is done (cuStreamQuery).

Returns:
    True if it is done.

Raises:
    ValueError: the stream is closed.
    DriverError: the driver failed.
    NcclError: an operation on the stream failed. Raised once; the class gives the reason.)")
      .def("wait", &Stream::wait, py::arg("event"), Release(),
           R"(Make work that is enqueued later wait for an event (cuStreamWaitEvent).

Args:
    event: an Event. The stream waits for its most recently recorded point, if there is one.

Raises:
    ValueError: the stream or the event is closed.
    DriverError: the driver failed.)")
      .def("launch", &launch, py::arg("function"),
           R"(Enqueue a call to a Python function (cuLaunchHostFunc).

Inside capture(), every launch of the graph calls it.

Args:
    function: called without arguments. It must not call CUDA or a collective, nor wait for the
        function of another stream: CUDA may call them one after another. An exception goes to
        sys.unraisablehook and is raised again by calls that wait for the function: those of the
        stream, events and graphs.

Raises:
    ValueError: the stream is closed, or is being captured other than by capture().
    DriverError: the driver failed.)")
      .def("launch_native", &launch_native, py::arg("function"), py::arg("argument") = 0,
           R"(Enqueue a call to a C function, void function(void* argument) (cuLaunchHostFunc).

The function runs in stream order, on a thread without the GIL. Inside capture(), every launch of
the graph calls it.

Args:
    function: the address as an integer, such as the attribute "address" of a numba.cfunc. The
        function must not call CUDA. The caller must keep its code alive.
    argument: an address as an integer, or an object with the buffer protocol whose address is
        passed. The object is kept alive until the function has run; in a graph, as long as the
        graph.

Raises:
    TypeError: an invalid argument.
    ValueError: the address of the function is 0, the memory is not contiguous, the stream is
        closed, or it is being captured other than by capture() and an object must be kept alive.
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
            e.record(handle);
          },
          py::arg("stream"), R"(Record the current end of a stream (cuEventRecord).

Args:
    stream: a stream, as for the collectives.

Raises:
    TypeError, ValueError: stream is not a stream, or the event or the stream is closed.
    DriverError: the driver failed.)")
      .def("synchronize", &synchronize<Event>,
           R"(Wait until the recorded point is reached (cuEventSynchronize).

Raises:
    ValueError: the event is closed.
    DriverError: the driver failed.
    NcclError: an operation on the stream failed. Raised once; the class gives the reason.)")
      .def("query", &Event::done, Release(),
           R"(Whether the recorded point is reached (cuEventQuery).

Returns:
    True if it was reached, or if nothing was recorded.

Raises:
    ValueError: the event is closed.
    DriverError: the driver failed.
    NcclError: an operation before the recorded point failed. Raised by every call.)")
      .def(
          "elapsed_time",
          [](const Event& began, const Event& ended) {
            began.done(), ended.done();  // throw the failure of an operation
            return began.elapsed_seconds(ended);
          },
          py::arg("end"), Release(),
          R"(The time between two events (cuEventElapsedTime).

Args:
    end: the later event. Both must be created with timing=True and recorded.

Returns:
    The time in seconds.

Raises:
    ValueError: an event is closed, or was created without timing.
    DriverError: an event is not recorded or not reached.
    NcclError: an operation before one of them failed.)")
      .def("close", &Event::close, R"(Free the event (cuEventDestroy). Closing twice is allowed.

Raises:
    DriverError: the driver failed.)");

  py::class_<StreamGraph, std::shared_ptr<StreamGraph>> graph(
      m, "Graph",
      R"(Captured work that is launched with one call (CUgraphExec). Created by capture().

It keeps the captured buffers, functions and communicators alive until it is closed or deleted. The
memory of the buffers must not move. Closing a communicator invalidates the graphs that use it.)");
  add_context(graph);
  graph
      .def(py::init(&make_graph), py::arg("library"), py::arg("stream"),
           py::arg("mode") = "thread_local")
      .def(
          "launch", &StreamGraph::launch_on, py::arg("stream") = py::none(),
          R"(Run the captured work, after the work on the stream and the previous launch (cuGraphLaunch).

Args:
    stream: the stream to launch on, as for the collectives; None is the captured stream. On CPUs, 0
        runs the work on the calling thread, and the call returns when it is done.

Raises:
    RuntimeError: launched inside a group or a plan.
    ValueError: there is nothing to launch, a communicator of the graph was closed, or the stream is
        being captured: a launch cannot be captured into another graph.
    NcclTimeoutError: a communicator of the graph exceeded a time limit.
    DriverError: the driver failed.)")
      .def("close", &StreamGraph::close, Release(),
           R"(Free the graph (cuGraphExecDestroy).

Launches in progress complete. Closing twice is allowed.

Raises:
    ValueError: the graph is being captured.)")
      .def("__len__", &StreamGraph::size, "The number of nodes (cuGraphGetNodes).")
      .def("__repr__", [](const StreamGraph& g) { return "<pynccl.nccl.Graph " + g.text() + ">"; });
}

}  // namespace pynccl::python
