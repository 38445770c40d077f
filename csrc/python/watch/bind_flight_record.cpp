// The functions that read and dump the flight record.
#include <string_view>

#include "comm/deadlines.h"
#include "common/new_file.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/comm/communicator.h"
#include "watch/flight_dump.h"
#include "watch/process_identity.h"

namespace pynccl::python {
namespace {

py::list flight_record(Communicator& communicator) {
  Deadlines& deadlines = communicator.deadlines();
  {
    const GilReleased released;  // a GPU driver can block the queries
    deadlines.update();
  }
  const py::object type = py::module_::import("pynccl._internal.records").attr("FlightRecord");
  const std::int64_t epoch = epoch_of_clock();
  py::list records;
  for (const FlightRecord& r : deadlines.recorder().read_all())
    records.append(
        type(r.sequence, kind_name(r.kind), r.number != 0 ? std::optional(r.number) : std::nullopt,
             dtype_name(r.dtype), r.count, r.root_or_peer, r.arguments(),
             reinterpret_cast<std::uintptr_t>(r.stream), static_cast<double>(r.issued) / 1e9,
             r.issued + epoch, r.state_name(r.sequence <= deadlines.done()), r.fingerprint));
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
          throw_os_error(error);
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
