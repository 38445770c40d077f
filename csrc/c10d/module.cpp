// The Python module of the backend: PyncclBackend and its PyncclOptions.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "backend.h"
#include "lane.h"

namespace pynccl::dist {
namespace {

void leave(const py::function& cancel) {
  Ending::begin();
  const GilReleased released;
  leave_host_lanes([&] { with_gil([&] { cancel(); }); });
}

c10::intrusive_ptr<PyncclOptions> copied(const PyncclOptions& options) {
  return c10::make_intrusive<PyncclOptions>(options);
}

}  // namespace
}  // namespace pynccl::dist

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace pynccl::dist;
  m.def("_leave", &leave, py::arg("cancel"),
        "End the threads of lanes at exit, while threads can still run Python.");

  py::class_<PyncclOptions, c10::intrusive_ptr<PyncclOptions>, c10d::Backend::Options>(
      m, "Options", "The options of the backend: timeout, stream priority and NCCL configuration.")
      .def(py::init<>())
      .def_readwrite("is_high_priority_stream", &PyncclOptions::high_priority,
                     "Whether asynchronous operations run on high-priority streams.")
      .def_property(
          "config", [](const PyncclOptions& o) { return o.config ? *o.config : py::none(); },
          [](PyncclOptions& o, const py::object& config) {
            o.config = config.is_none() ? nullptr : hold(config);
          },
          "A pynccl.nccl.Config, or None.")
      .def("__copy__", &copied)
      .def("__deepcopy__", [](const PyncclOptions& o, const py::dict&) { return copied(o); });

  py::class_<PyncclBackend, c10::intrusive_ptr<PyncclBackend>, c10d::Backend>(
      m, "PyncclBackend", "The backend of a process group over pynccl communicators.")
      .def(py::init<py::object, int, int, c10::intrusive_ptr<PyncclOptions>>(),
           py::arg("connector"), py::arg("rank"), py::arg("size"), py::arg("options"))
      .def_property_readonly("options", &PyncclBackend::getBackendOptions, "Its Options.")
      .def_property_readonly("_connector", [](const PyncclBackend& b) { return *b.connector(); })
      .def("communicator", &PyncclBackend::communicator, py::arg("device"),
           "Return the group's communicator for a device, or None if not created yet.")
      .def("_start_time_estimate", &PyncclBackend::startTimeEstimate,
           "Start a time estimate: operations are not run until it ends.")
      .def("_end_time_estimate", &PyncclBackend::endTimeEstimate,
           "Return the sum of NCCL's estimates since the start, in microseconds.")
      .def("get_error", &PyncclBackend::getError, py::call_guard<py::gil_scoped_release>(),
           "Return the c10d::ErrorType of the communicators. Available since torch 2.14.")
      .def("_is_initialized", &PyncclBackend::isInitialized,
           "Return whether operations can be issued: the group is open, configured and not "
           "suspended.")
      .def(
          "perform_nocolor_split", [](PyncclBackend&, const at::Device&) {},
          "Do nothing: a new group does not split this one.");
}
