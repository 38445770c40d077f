// Traces, recordings and ranges of profilers, the basis of pynccl.tools.trace.
#include <utility>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "nccl/library.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "watch/process_identity.h"
#include "watch/profiler_ranges.h"
#include "watch/trace.h"

namespace pynccl::python {
namespace {

using Release = py::call_guard<GilReleased>;

PyObject* profiler = nullptr;  // the Python function, or null

// Calls a function of a profiler. An exception does not fail the operation.
template <class Function>
py::object call_profiler(Function&& function) {
  try {
    return gil::or_sleep(function);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the profiler range of an operation");
    return {};
  }
}

// The name of a communicator, or its id, and its rank.
std::string group_text(const Communicator& communicator) {
  const FlightIdentity identity = communicator.deadlines().recorder().identity();
  return (identity.name.empty() ? FlightIdentity::text(identity.id) : identity.name) + ", rank " +
         std::to_string(identity.rank) + " of " + std::to_string(identity.nranks);
}

// Called by a thread without the GIL, like close_range().
void* open_range(const ProfilerRanges::Call& call) {
  if (!Py_IsInitialized()) return nullptr;
  const std::string group = call.communicator ? group_text(*call.communicator) : "";
  const GilAcquired gil;
  const py::object function = py::reinterpret_borrow<py::object>(profiler);
  if (!function) return nullptr;
  return call_profiler([&] { return function(call.name, call.nbytes, group); }).release().ptr();
}

void close_range(void* range) {
  if (!Py_IsInitialized()) return;
  const GilAcquired gil;
  const py::object close = py::reinterpret_steal<py::object>(static_cast<PyObject*>(range));
  call_profiler([&] { return close(); });
}

py::object set_profiler(const py::object& function) {
  PyObject* const before =
      std::exchange(profiler, function.is_none() ? nullptr : function.inc_ref().ptr());
  ProfilerRanges::set(profiler ? &open_range : nullptr, profiler ? &close_range : nullptr);
  return before ? py::reinterpret_steal<py::object>(before) : py::none();
}

CUstream stream_of(std::uintptr_t stream) { return reinterpret_cast<CUstream>(stream); }

}  // namespace

void bind_trace(py::module_& m) {
  m.def(
      "start_trace",
      [](std::uint64_t operations, bool graphs) { TraceState::get().start(operations, graphs); },
      py::arg("operations"), py::arg("graphs"), Release(),
      "Start a trace of at most this many operations, with or without the times of operations in "
      "graphs. Raises ValueError if a trace is active.");
  m.def(
      "stop_trace",
      [](double seconds) {
        std::string bytes;
        {
          const GilReleased released;
          bytes = TraceState::get().stop(seconds);
        }
        return py::bytes(bytes);
      },
      py::arg("seconds"),
      "Stop the trace: wait for its operations, at most this many seconds, and return it in the "
      "format of a recording.");
  m.def(
      "start_recording",
      [](const std::string& path, std::uint64_t bytes) {
        TraceState::get().start_recording(path, bytes);
      },
      py::arg("path"), py::arg("bytes"), Release(),
      "Start a recording of at most this many bytes. Raises ValueError if one is active.");
  m.def(
      "stop_recording",
      [] {
        try {
          const GilReleased released;
          return TraceState::get().stop_recording();
        } catch (const std::system_error& error) {
          throw_os_error(error);
        }
      },
      "Stop the recording. Returns the name of its file; empty if nothing was recorded.");
  m.def("path_of_process", &path_of_process, py::arg("path"),
        "Insert the rank of this process, or \"pid\" and its process id, before a path's suffix.");
  m.def("set_profiler", &set_profiler, py::arg("function").none(true),
        "Set the function(operation, nbytes, group) to call before each operation and group. The "
        "result is called after it. Returns the previous function.");
  m.def(
      "begin_range",
      [](const std::string& name, bool compute, const std::shared_ptr<Library>& library,
         std::uintptr_t stream) {
        return Trace::begin_range(name, compute, library, stream_of(stream));
      },
      py::arg("name"), py::arg("compute"), py::arg("library").none(true), py::arg("stream"),
      "Begin a range of the thread, or of a stream of the library, in a trace. Returns its "
      "number.");
  m.def(
      "end_range",
      [](std::uint64_t number, const std::shared_ptr<Library>& library, std::uintptr_t stream) {
        Trace::end_range(number, library, stream_of(stream));
      },
      py::arg("number"), py::arg("library").none(true), py::arg("stream"), "End a range.");
}

}  // namespace pynccl::python
