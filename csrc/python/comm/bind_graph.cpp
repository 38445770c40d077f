// The class Graph: captured work that is launched with one call.
#include "comm/graph.h"
#include "comm/stream.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/comm/group.h"
#include "python/convert/integer.h"
#include "python/convert/stream.h"

namespace pynccl::python {
namespace {

CUstreamCaptureMode mode_from_python(const std::string& mode) {
  if (mode == "global") return CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == "thread_local") return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  if (mode == "relaxed") return CU_STREAM_CAPTURE_MODE_RELAXED;
  throw py::value_error("mode: expected 'global', 'thread_local' or 'relaxed', got " +
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

void bind_graph(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  py::class_<StreamGraph, std::shared_ptr<StreamGraph>> type(
      m, "Graph",
      R"(Captured work that is launched with one call (CUgraphExec). Created by capture().

It keeps the captured buffers, functions and communicators alive until it is closed or deleted. The
memory of the buffers must not move. Closing a communicator invalidates the graphs that use it.)");
  add_context(type);
  type.def(py::init(&make_graph), py::arg("library"), py::arg("stream"),
           py::arg("mode") = "thread_local")
      .def(
          "launch",
          [](const StreamGraph& graph, const py::object& on) {
            const CUstream stream = graph.target(on);
            const GilReleased released;  // on CPUs the work may run in this call
            graph.launch(stream);
          },
          py::arg("stream") = py::none(),
          R"(Run the captured work, after the work on the stream and the previous launch (cuGraphLaunch).

Args:
    stream: the stream to launch on, as for the collectives; None is the captured stream. On CPUs, 0
        runs the work on the calling thread, and the call returns when it is done.

Raises:
    RuntimeError: launched inside a group or a plan.
    ValueError: there is nothing to launch, or a communicator of the graph was closed.
    NcclTimeoutError: a communicator of the graph exceeded a time limit.
    DriverError: the driver failed.)")
      .def(
          "upload",
          [](const StreamGraph& graph, const py::object& on) {
            const CUstream stream = graph.target(on);
            const GilReleased released;
            graph.upload(stream);
          },
          py::arg("stream") = py::none(),
          R"(Prepare the device for the first launch, which does it otherwise (cuGraphUpload).

Args:
    stream: as for launch().

Raises:
    RuntimeError: called inside a group or a plan.
    ValueError: there is nothing to launch.
    DriverError: the driver failed.)")
      .def("close", &StreamGraph::close, Release(),
           R"(Free the graph (cuGraphExecDestroy).

Launches in progress complete. Closing twice is allowed.

Raises:
    ValueError: the graph is being captured.)")
      .def("__len__", &StreamGraph::size, "The number of nodes (cuGraphGetNodes).")
      .def("__repr__",
           [](const StreamGraph& graph) { return "<pynccl.nccl.Graph " + graph.text() + ">"; });
}

}  // namespace pynccl::python
