// The class FlightRecord and the functions that read and dump the flight record.
#include <cerrno>
#include <string_view>
#include <system_error>

#include "comm/deadlines.h"
#include "comm/open_communicators.h"
#include "common/new_file.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/comm/communicator.h"
#include "watch/flight_dump.h"
#include "watch/process_identity.h"

namespace pynccl::python {
namespace {

// A record of the Python class FlightRecord.
struct RecordView {
  FlightRecord record;
  bool done;

  const char* state() const { return record.state_name(done); }
};

std::vector<RecordView> flight_record(Communicator& communicator) {
  Deadlines& deadlines = communicator.deadlines();
  deadlines.update();
  std::vector<RecordView> records;
  for (const FlightRecord& record : deadlines.recorder().read_all())
    records.push_back({record, record.sequence <= deadlines.done()});
  return records;
}

py::dict all_flight_records() {
  py::dict records;
  for (const auto& communicator : OpenCommunicators::communicators())
    records[py::cast(communicator)] = flight_record(*communicator);
  return records;
}

}  // namespace

void bind_flight_record(py::module_& m) {
  py::class_<RecordView>(m, "FlightRecord",
                         "The record of an operation, from Communicator.flight_record().")
      .def_property_readonly(
          "sequence", [](const RecordView& r) { return r.record.sequence; },
          "The number of the operation on this rank of the communicator, from 1.")
      .def_property_readonly(
          "operation", [](const RecordView& r) { return kind_name(r.record.kind); },
          "The name of the method of Communicator, such as 'all_reduce'.")
      .def_property_readonly(
          "dtype", [](const RecordView& r) { return dtype_name(r.record.dtype); },
          "The name of NCCL's data type, such as 'float32'.")
      .def_property_readonly(
          "count", [](const RecordView& r) { return r.record.count; },
          "The number of elements, as passed to the function of nccl.h.")
      .def_property_readonly(
          "root_or_peer", [](const RecordView& r) { return r.record.root_or_peer; },
          "The root of a collective or the peer of a message; meaningless for other operations.")
      .def_property_readonly(
          "stream",
          [](const RecordView& r) { return reinterpret_cast<std::uintptr_t>(r.record.stream); },
          "The cudaStream_t as an integer.")
      .def_property_readonly(
          "issued", [](const RecordView& r) { return static_cast<double>(r.record.issued) / 1e9; },
          "The time of the call in seconds of time.monotonic(), with a resolution of a few ms.")
      .def_property_readonly(
          "time_created_ns", [](const RecordView& r) { return r.record.issued + epoch_of_clock(); },
          "The time of the call in nanoseconds since the epoch.")
      .def_property_readonly(
          "number",
          [](const RecordView& r) {
            return r.record.number != 0 ? std::optional(r.record.number) : std::nullopt;
          },
          "The number of a collective among the collectives of the communicator, or of a message "
          "among the sends to, or receives from, its peer; from 1. None for one-sided operations.")
      .def_property_readonly(
          "state", &RecordView::state,
          "'called': the call has not returned. 'issued': the call has returned. "
          "'captured': the operation was captured into a graph of "
          "nccl.capture(), whose launches run it. 'done': the operation is known "
          "to be done. 'failed': the call failed.")
      .def_property_readonly(
          "fingerprint", [](const RecordView& r) { return r.record.fingerprint; },
          "A 64-bit hash of all collectives up to this one, equal on ranks that have called the "
          "same ones.")
      .def("__repr__", [](const RecordView& r) {
        return "<pynccl.nccl.FlightRecord " + r.record.text() + ", " + r.state() + ">";
      });

  auto type = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  type.def("flight_record", &flight_record,
           R"(The last 512 operations of this rank, oldest first.

Recording is always on and includes operations inside groups and plans. Launches of graphs are not
recorded. The records remain available after the communicator was closed or has failed.

Returns:
    A list of FlightRecord.)")
      .def("_set_name", &Communicator::set_name, py::arg("name"),
           "Set the name of the communicator in dumps of the flight record.");

  m.def("flight_record", &all_flight_records,
        R"(The last 512 operations on each open communicator of this process.

Returns:
    A dict from each Communicator to the result of its flight_record(), in the order of their
    creation.)");
  m.def("flight_dump_json", &FlightDump::json, py::arg("reason"), py::call_guard<GilReleased>(),
        "A dump of the flight record as JSON. See nccl.dump_flight_record().");
  m.def(
      "write_new_file",
      [](const std::string& path, const py::bytes& data) {
        const std::string_view bytes = data;
        try {
          const GilReleased released;
          common::NewFile file(path);
          file.write_all(bytes);
          file.publish();
        } catch (const std::system_error& error) {
          errno = error.code().value();
          PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
          throw py::error_already_set();
        }
      },
      py::arg("path"), py::arg("data"),
      R"(Write a file atomically, replacing an existing one.

Links are not followed, and only the owner can write to the file.

Raises:
    OSError: the file cannot be written, or the path names a link, a directory or a device.)");
  m.def("flight_dump_path", &FlightDump::default_path,
        "The dump file of this process according to PYNCCL_FLIGHT_FILE, or None.");
  m.def("set_process_rank", &set_process_rank, py::arg("rank").none(true),
        "Set the rank of this process in dumps and traces. None restores the default, RANK.");
  FlightDump::listen();
}

}  // namespace pynccl::python
