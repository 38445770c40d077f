// The class Config.
#include "python/comm/config.h"

#include "python/call/bind.h"
#include "python/call/held.h"

namespace pynccl::python {
namespace {

template <class Class>
void def_field(Class& type, const char* attribute, int ncclConfig_t::* member) {
  type.def_property(
      attribute,
      [member](const Config& c) -> py::object {
        const int value = c.value.*member;
        return value == kUndefInt ? py::object(py::none()) : py::int_(value);
      },
      [member, attribute](Config& c, const py::object& value) {
        c.value.*member =
            value.is_none() ? kUndefInt : integer_from_python<int>(attribute, value.ptr());
      });
}

template <class Class>
void def_field(Class& type, const char* attribute, const char* ncclConfig_t::* member) {
  type.def_property(
      attribute, [member](const Config& c) { return c.value.*member; },
      [member, attribute](Config& c, const py::object& value) {
        if (!value.is_none() && !py::isinstance<py::str>(value))
          throw_type_error(attribute, "a str or None", value.ptr());
        c.set(member, value);
      });
}

constexpr const char* kConfigAttributes[] = {
#define FIELD(since, type, name, attribute) #attribute,
#include "abi/config_fields.inc"
#undef FIELD
    "init_timeout",
    "timeout",
    "on_timeout",
    "check",
};

// The settings that are not None.
py::dict config_settings(const py::object& self) {
  py::dict set;
  for (const char* attribute : kConfigAttributes)
    if (const py::object value = self.attr(attribute); !value.is_none()) set[attribute] = value;
  return set;
}

void apply(const py::object& self, const py::dict& values) {
  for (const auto& [key, value] : values) {
    const auto name = std::string(py::str(key));
    const auto* end = std::end(kConfigAttributes);
    if (std::find(std::begin(kConfigAttributes), end, name) == end)
      throw py::type_error("Config() got an unexpected keyword argument '" + name + "'");
    py::setattr(self, key, value);
  }
}

}  // namespace

Communicator::Options options_from_python(const py::object& config, int device) {
  Communicator::Options options;
  options.device = device;
  if (config.is_none()) return options;
  if (!py::isinstance<Config>(config)) throw_type_error("config", "a Config or None", config.ptr());
  const auto& given = py::cast<const Config&>(config);
  options.config = given.value;
  options.init_timeout = given.init_timeout;
  options.timeout = given.timeout;
  options.check = given.check;
  if (given.on_timeout) options.on_timeout = policy_from_python(held(given.on_timeout));
  return options;
}

std::optional<std::uint64_t> check_from_python(const py::object& value) {
  if (value.is_none()) return std::nullopt;
  if (py::isinstance<py::str>(value) && py::cast<std::string>(value) == "every") return 1;
  if (!PyIndex_Check(value.ptr())) throw_type_error("check", "'every' or an integer", value.ptr());
  const auto every = integer_from_python<std::int64_t>("check", value.ptr());
  if (every < 1) throw py::value_error("check: " + std::to_string(every) + " is below 1");
  return static_cast<std::uint64_t>(every);
}

void bind_config(py::module_& m) {
  py::class_<Config> type(m, "Config", R"(The configuration of a communicator (ncclConfig_t).

Every field of ncclConfig_t is a keyword argument and an attribute in snake case (cgaClusterSize is
cga_cluster_size). None leaves the choice to NCCL. If the loaded NCCL does not support a setting
yet, creating the communicator raises ValueError.

Args:
    init_timeout: the time limit in seconds for creating the communicator, until all ranks have
        joined. After that, the ranks that have joined raise NcclTimeoutError. On CPUs the creation
        ends, and the error on the other ranks names the first rank that gave up. On GPUs the NCCL
        call continues in the background. None is the library's own limit (hostnccl:
        HOSTNCCL_INIT_TIMEOUT, 300 seconds).
    timeout: the time limit in seconds for every operation, from its call until it is done, and for
        every other call that waits for ranks. An operation or call that exceeds it raises
        NcclTimeoutError, and the communicator is revoked (aborted if NCCL is older than 2.28.7); it
        can still be shrunk. float("inf") is no limit. None is the environment variable
        PYNCCL_TIMEOUT, else 1800 seconds.
    on_timeout: the additional action when timeout is exceeded. "raise": none. "abort": the process
        prints the error on stderr and ends with SIGABRT. A function: it is called once, with the
        Communicator and the NcclTimeoutError, in a thread of its own after the communicator was
        revoked; see Communicator.on_timeout. None is the environment variable PYNCCL_ON_TIMEOUT,
        else "raise".
    check: "every" or a number N. Before every collective, or every N-th one, the ranks compare
        through the communicator's store what they are about to call and what they have called since
        the previous comparison. If they differ, all ranks raise NcclInvalidUsageError, and nothing
        is sent. Messages are compared without waiting: if two differ, the later call raises. For
        debugging, since a comparison takes milliseconds. None is the environment variable
        PYNCCL_CHECK if the communicator has a store, else no comparison.

Raises:
    TypeError: an unknown setting, or a value of the wrong type.
    ValueError: an integer out of range, a time limit that is not positive, or an unknown string for
        on_timeout.)");
  // The keywords are those of the table. Each is set as an attribute, whose setter checks it.
  type.def(py::init([](const py::kwargs& settings) {
        py::object self = py::cast(Config());
        apply(self, settings);
        return py::cast<Config>(self);
      }))
      .def_property(
          "init_timeout", [](const Config& c) { return c.init_timeout; },
          [](Config& c, std::optional<double> seconds) {
            c.init_timeout = checked_seconds("init_timeout", seconds);
          },
          "The time limit for creating the communicator in seconds, or None.")
      .def_property(
          "timeout", [](const Config& c) { return c.timeout; },
          [](Config& c, std::optional<double> seconds) {
            c.timeout = checked_seconds("timeout", seconds);
          },
          "The time limit of every operation in seconds, or None.")
      .def_property(
          "on_timeout", [](const Config& c) { return held(c.on_timeout); },
          [](Config& c, const py::object& value) {
            if (!value.is_none()) policy_from_python(value);  // throws if it is invalid
            c.on_timeout = value.is_none() ? nullptr : hold(value);
          },
          "'raise', 'abort', a function, or None.")
      .def_property(
          "check", [](const Config& c) { return c.check; },
          [](Config& c, const py::object& value) { c.check = check_from_python(value); },
          "The number of collectives between comparisons, or None.")
      .def("__repr__",
           [](const py::object& self) {
             std::string text;
             for (const auto& [key, value] : config_settings(self)) {
               if (!text.empty()) text += ", ";
               text += std::string(py::str(key)) + "=" + std::string(py::repr(value));
             }
             return "Config(" + text + ")";
           })
      .def(py::pickle(&config_settings, [](const py::dict& state) {
        py::object self = py::cast(Config());
        apply(self, state);
        return py::cast<Config>(self);
      }));
#define FIELD(since, type_, name, attribute) def_field(type, #attribute, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD
}

}  // namespace pynccl::python
