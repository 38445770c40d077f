// The deadlines of operations and the flight recorder: Communicator.timeout, flight_record(), and
// the context manager deadline().
#include "core/deadlines.h"
#include "core/monitor.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"

namespace pynccl::python {
namespace {

// A record as Python sees it.
struct RecordView {
  FlightRecord record;
  bool done;

  const char* state() const {
    if (record.state == FlightRecord::State::kFailed) return "failed";
    if (record.state == FlightRecord::State::kCalled) return "called";
    return done ? "done" : "issued";
  }
};

std::vector<RecordView> flight_record(Communicator& communicator) {
  Deadlines& deadlines = communicator.deadlines();
  deadlines.update();
  const std::uint64_t last = deadlines.recorder().last();
  std::vector<RecordView> records;
  for (std::uint64_t number = last - std::min<std::uint64_t>(last, FlightRecorder::kRecords) + 1;
       number <= last; ++number)
    if (const auto record = deadlines.recorder().read(number))
      records.push_back({*record, number <= deadlines.done()});
  return records;
}

// The context manager of deadline(). It can be entered again, and nested.
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(*checked_seconds("seconds", seconds)) {}
  void enter() { scopes_.push_back(std::make_unique<DeadlineScope>(seconds_)); }
  void exit() {
    if (scopes_.empty()) throw std::invalid_argument("deadline: it was not entered");
    scopes_.pop_back();
  }

 private:
  double seconds_;
  std::vector<std::unique_ptr<DeadlineScope>> scopes_;
};

}  // namespace

std::optional<double> checked_seconds(const char* argument, std::optional<double> seconds) {
  if (seconds && !(*seconds > 0))
    throw py::value_error(std::string(argument) + ": " + std::to_string(*seconds) +
                          " must be above 0 seconds");
  return seconds;
}

void bind_deadlines(py::module_& m) {
  py::class_<RecordView>(m, "FlightRecord",
                         "The record of an operation, of Communicator.flight_record().")
      .def_property_readonly(
          "sequence", [](const RecordView& r) { return r.record.sequence; },
          "The number of the operation on this rank's communicator, from 1.")
      .def_property_readonly(
          "operation", [](const RecordView& r) { return kind_name(r.record.kind); },
          "The method of Communicator, such as 'all_reduce'.")
      .def_property_readonly(
          "dtype", [](const RecordView& r) { return dtype_name(r.record.dtype); },
          "The name of NCCL's data type, such as 'float32'.")
      .def_property_readonly(
          "count", [](const RecordView& r) { return r.record.count; },
          "Elements, as the function of nccl.h counts them.")
      .def_property_readonly(
          "root_or_peer", [](const RecordView& r) { return r.record.root_or_peer; },
          "The root of a collective, the peer of a message; of no meaning for others.")
      .def_property_readonly(
          "stream",
          [](const RecordView& r) { return reinterpret_cast<std::uintptr_t>(r.record.stream); },
          "The cudaStream_t as an integer.")
      .def_property_readonly(
          "issued", [](const RecordView& r) { return static_cast<double>(r.record.issued) / 1e9; },
          "When it was called, in seconds of time.monotonic(), with a resolution of some ms.")
      .def_property_readonly("state", &RecordView::state,
                             "'called': the call has not returned; 'issued': it has; 'done': the "
                             "operation is known to "
                             "be done; 'failed': the call has failed.")
      .def_property_readonly(
          "fingerprint", [](const RecordView& r) { return r.record.fingerprint; },
          "64 bits of all collectives up to this one. Equal on ranks that have called the same.")
      .def("__repr__", [](const RecordView& r) {
        return "<pynccl.nccl.FlightRecord " + r.record.text() + ", " + r.state() + ">";
      });

  py::class_<Deadline>(m, "deadline", R"(A time limit for what this thread issues in a with block.

    with nccl.deadline(5):
        comm.all_reduce(tensor)

It applies to every operation and to every other call that waits for ranks, from its call until it
is done. Where limits are nested, or a communicator has one, the shortest applies. What takes longer
raises NcclTimeoutError in all that wait for it, and its communicator is revoked: see Config.timeout.

Args:
    seconds: of each operation.

Raises:
    ValueError: seconds is not above 0.)")
      .def(py::init<double>(), py::arg("seconds"))
      .def("__enter__",
           [](const py::object& self) {
             py::cast<Deadline&>(self).enter();
             return self;
           })
      .def("__exit__", [](Deadline& deadline, const py::args&) { deadline.exit(); });

  auto type = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  type.def_property(
          "timeout",
          [](const Communicator& c) -> std::optional<double> {
            const std::int64_t limit = c.deadlines().own_limit();
            if (limit == FlightRecord::kNoLimit) return std::nullopt;
            return static_cast<double>(limit) / 1e9;
          },
          [](Communicator& c, std::optional<double> seconds) {
            c.deadlines().set_limit(limit_from_seconds(checked_seconds("timeout", seconds)));
            Monitor::get().wake();
          },
          "The time limit of every operation in seconds, for operations from now on; None for no "
          "limit. See Config.timeout.")
      .def_property_readonly("expired", &Communicator::expired,
                             "Whether something took longer than its time limit.")
      .def("flight_record", &flight_record,
           R"(The last 512 operations of this rank, oldest first.

They are recorded always, also for operations inside groups and plans; a launch of a graph is not
recorded. A communicator that was closed or has failed still has its records.

Returns:
    A list of FlightRecord.)");
}

}  // namespace pynccl::python
