// Deadlines of operations: Communicator.timeout and on_timeout, and the context manager deadline().
#include "comm/deadlines.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <thread>

#include "common/signals_blocked.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"

namespace pynccl::python {
namespace {

// The context manager of deadline(). It can be entered again, nested, and by several threads.
class Deadline {
 public:
  explicit Deadline(const py::object& seconds) {
    const auto limit = seconds_from_python("seconds", seconds);
    if (!limit) throw_type_error("seconds", "a number of seconds", seconds.ptr());
    seconds_ = *limit;
  }
  void enter() { scopes_.push_back(std::make_unique<DeadlineScope>(seconds_)); }
  void exit(bool) {
    if (scopes_.empty()) throw std::invalid_argument("deadline: it was not entered");
    auto last = std::find_if(scopes_.rbegin(), scopes_.rend(),
                             [](const auto& one) { return one->began_on_this_thread(); });
    if (last == scopes_.rend()) last = scopes_.rbegin();  // it was entered on another thread
    scopes_.erase(std::prev(last.base()));
  }

 private:
  double seconds_;
  std::vector<std::unique_ptr<DeadlineScope>> scopes_;
};

// Calls a Python function in a thread of its own, since the thread that holds the GIL may be
// waiting for the monitor.
void call_in_thread(const std::shared_ptr<void>& function,
                    const std::shared_ptr<Communicator>& communicator, const NcclFailure& failure) {
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread([function, communicator, failure] {
    const GilAcquired gil;
    auto* const callable = static_cast<PyObject*>(function.get());
    py::tuple arguments;
    try {
      gil::or_sleep([&] { arguments = py::make_tuple(communicator, error_object(failure)); });
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
    throw_value_error("on_timeout", "'", name, "' is neither 'raise', 'abort' nor a function");
  return {name == "abort", {}, {}};
}

py::object policy_to_python(const TimeoutPolicy& policy) {
  if (policy.function) return held(policy.function);
  return py::str(policy.abort ? "abort" : "raise");
}

std::optional<double> seconds_from_python(const char* argument, const py::object& value) {
  if (value.is_none()) return std::nullopt;
  const double seconds = PyFloat_AsDouble(value.ptr());
  if (seconds == -1 && PyErr_Occurred())
    throw_conversion_error(argument, "a number of seconds", value.ptr());
  if (!(seconds > 0))
    throw_value_error(argument, std::string(py::repr(value)), " must be above 0 seconds");
  return seconds;
}

void bind_deadlines(py::module_& m) {
  py::class_<Deadline> deadline_type(
      m, "deadline",
      R"(A time limit for the operations that this thread issues in a with block.

    with nccl.deadline(5):
        comm.all_reduce(tensor)

It applies to every operation, and to every other call that waits for ranks, from its call until it
is done. If limits are nested, or the communicator has one, the shortest applies. An operation that
exceeds its limit raises NcclTimeoutError in every wait for it, and its communicator is revoked; see
Config.timeout.

Args:
    seconds: the time limit of each operation, in seconds.

Raises:
    ValueError: seconds is not positive.)");
  deadline_type.def(py::init<const py::object&>(), py::arg("seconds"));
  add_context(deadline_type);

  auto type = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  type.def_property(
          "timeout",
          [](const Communicator& c) -> std::optional<double> {
            const std::int64_t limit = c.deadlines().own_limit();
            if (limit == FlightRecord::kNoLimit) return std::nullopt;
            return static_cast<double>(limit) / 1e9;
          },
          [](Communicator& c, const py::object& seconds) {
            c.set_timeout(seconds_from_python("timeout", seconds));
          },
          "The time limit of subsequent operations in seconds, or None for no limit. See "
          "Config.timeout.")
      .def_property(
          "on_timeout", [](const Communicator& c) { return policy_to_python(c.policy()); },
          [](Communicator& c, const py::object& value) { c.set_policy(policy_from_python(value)); },
          R"(The additional action when a time limit is exceeded: 'raise', 'abort' or a function.

With every policy, calls that wait for the operation raise NcclTimeoutError. 'raise': nothing else
happens. 'abort': the process prints the error on stderr, writes the flight record if
PYNCCL_FLIGHT_FILE is set, and ends with SIGABRT. A function: it is called once, with the
Communicator and the NcclTimeoutError, in a thread of its own after the communicator was revoked, so
the waiting calls raise whether or not it returns. It may create and close communicators. It needs
the GIL and cannot run while another thread holds it. Its exceptions go to sys.unraisablehook.)")
      .def_property_readonly("expired", &Communicator::expired,
                             "Whether an operation or call exceeded its time limit.");
  m.def(
      "default_timeout", [] { return seconds_from_limit(default_limit()); },
      "The time limit of communicators that set none, in seconds: PYNCCL_TIMEOUT or 1800. Raises "
      "ValueError if the variable is not a number of seconds.");
}

}  // namespace pynccl::python
