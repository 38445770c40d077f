// The deadlines of operations: Communicator.timeout and on_timeout, and the context manager
// deadline().
#include "comm/deadlines.h"

#include <functional>
#include <thread>

#include "common/signals_blocked.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/config.h"

namespace pynccl::python {
namespace {

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

// Calls a function of Python in a thread of its own: the thread that holds the GIL may be waiting
// for the monitor.
void call_in_thread(const std::shared_ptr<void>& function,
                    const std::shared_ptr<Communicator>& communicator, const NcclFailure& failure) {
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread([function, communicator, failure] {
    const GilAcquired gil;
    auto* const callable = static_cast<PyObject*>(function.get());
    py::tuple arguments;
    try {
      gil::or_sleep([&] {
        arguments = py::make_tuple(
            communicator, error_object(failure.code, failure.function.c_str(), failure.rank,
                                       failure.what(), failure.missing));
      });
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the arguments of on_timeout");
      return;
    }
    Py_XDECREF(call_reporting(callable, arguments.ptr()));
  }).detach();
}

}  // namespace

TimeoutPolicy policy_from_python(const py::object& value) {
  if (PyCallable_Check(value.ptr())) {
    const std::shared_ptr<void> function = hold(value);
    return {false, std::bind_front(&call_in_thread, function), function};
  }
  if (!py::isinstance<py::str>(value))
    throw_type_error("on_timeout", "'raise', 'abort' or a function", value.ptr());
  const auto name = py::cast<std::string>(value);
  if (name != "raise" && name != "abort")
    throw py::value_error(std::string("on_timeout: '") + name +
                          "' is neither 'raise', 'abort' nor a function");
  return {name == "abort", {}, {}};
}

std::optional<double> checked_seconds(const char* argument, std::optional<double> seconds) {
  if (seconds && !(*seconds > 0))
    throw py::value_error(std::string(argument) + ": " + std::to_string(*seconds) +
                          " must be above 0 seconds");
  return seconds;
}

void bind_deadlines(py::module_& m) {
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
            c.set_timeout(checked_seconds("timeout", seconds));
          },
          "The time limit of every operation in seconds, for operations from now on; None for no "
          "limit. See Config.timeout.")
      .def_property(
          "on_timeout",
          [](const Communicator& c) -> py::object {
            const TimeoutPolicy policy = c.policy();
            if (policy.function) return held(policy.function);
            return py::str(policy.abort ? "abort" : "raise");
          },
          [](Communicator& c, const py::object& value) { c.set_policy(policy_from_python(value)); },
          R"(What happens besides when a time limit is over.

'raise': nothing; those who wait raise NcclTimeoutError, as with every policy. 'abort': the process
ends with SIGABRT; the text is on stderr, and the flight record in its file where PYNCCL_FLIGHT_FILE
is set. A function: it is called once, with the Communicator and the NcclTimeoutError, in a thread of
its own, after the communicator was revoked, so those who wait raise whether it returns or not. It
may make and close communicators. It needs the GIL: it does not run while another thread keeps that.
What it raises goes to sys.unraisablehook.)")
      .def_property_readonly("expired", &Communicator::expired,
                             "Whether something took longer than its time limit.");
}

}  // namespace pynccl::python
