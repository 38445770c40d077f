// The class Graph and capture(): work that was captured on a stream, launched as one call.
#include "core/graph.h"

#include "core/stream.h"

#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/convert/stream.h"
#include "python/objects/bind.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

CUstreamCaptureMode mode_from_python(const std::string& mode) {
  if (mode == "global") return CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == "thread_local") return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  if (mode == "relaxed") return CU_STREAM_CAPTURE_MODE_RELAXED;
  throw py::value_error("mode: expected 'global', 'thread_local' or 'relaxed', got " +
                        std::string(py::repr(py::str(mode))));
}

// A graph with the stream that it is captured on, which is the one to launch it on by default.
struct OwnGraph : Graph {
  OwnGraph(std::shared_ptr<Library> library, const py::object& on, CUstreamCaptureMode mode)
      : Graph(library, stream_from_python(on.ptr(), *library), device_of(on), mode),
        given_stream(on) {}

  static int device_of(const py::object& on) {
    return py::isinstance<Stream>(on) ? py::cast<const Stream&>(on).device() : -1;
  }

  CUstream target(const py::object& on) const {
    if (Group::active())
      throw std::runtime_error("graph: it cannot be launched inside a group or a plan");
    return stream_from_python(on.is_none() ? given_stream.ptr() : on.ptr(), library());
  }

  py::object given_stream;
};

std::shared_ptr<OwnGraph> make(const std::shared_ptr<Library>& library, const py::object& stream,
                               const std::string& mode) {
  return std::make_shared<OwnGraph>(library, stream, mode_from_python(mode));
}

}  // namespace

void bind_graph(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<OwnGraph, std::shared_ptr<OwnGraph>>(
      m, "Graph", R"(What capture() has captured: work to be launched as one call.

It keeps the buffers of the operations, the functions and the communicators that were captured
until it is closed or forgotten; the buffers' memory must stay where it was. A communicator that is
closed first makes its graphs unusable.)")
      .def(py::init(&make), py::arg("library"), py::arg("stream"), py::arg("mode") = "thread_local")
      .def("__enter__",
           [](const py::object& self) {
             py::cast<OwnGraph&>(self).begin();
             return self;
           })
      .def("__exit__",
           [](OwnGraph& graph, const py::object& type, const py::object&, const py::object&) {
             const bool failed = !type.is_none();
             const GilReleased released;
             graph.end(failed);
             return false;
           })
      .def(
          "launch",
          [](const OwnGraph& graph, const py::object& on) {
            const CUstream stream = graph.target(on);
            const GilReleased released;  // on CPUs it may run here
            graph.launch(stream);
          },
          py::arg("stream") = py::none(),
          R"(Run all that was captured, after what is on the stream and after the launch before
(cuGraphLaunch).

Args:
    stream: the stream to launch on, in every form that a collective takes; None is the one that was
        captured. On CPUs, 0 is the calling thread: the call lasts until all is done.

Raises:
    ValueError: there is nothing to launch, or a communicator that it needs was closed.
    DriverError: the driver refused.)")
      .def(
          "upload",
          [](const OwnGraph& graph, const py::object& on) {
            const CUstream stream = graph.target(on);
            const GilReleased released;
            graph.upload(stream);
          },
          py::arg("stream") = py::none(),
          "Prepare the device for the first launch, which else does it (cuGraphUpload).")
      .def("close", &OwnGraph::close, Release(),
           "Free it (cuGraphExecDestroy). Launches under way go on; closing twice is no error.")
      .def("__len__", &OwnGraph::size, "How many nodes it has (cuGraphGetNodes).")
      .def("__repr__",
           [](const OwnGraph& graph) { return "<pynccl.nccl.Graph " + graph.text() + ">"; });
}

}  // namespace pynccl::python
