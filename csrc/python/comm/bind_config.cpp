// The class Config, and the CollConfig of an operation.
#include "python/comm/communicator.h"

#include "comm/stream.h"
#include "python/call/bind.h"
#include "python/call/held.h"
#include "python/call/modules.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

py::object int_or_none(int value) {
  return value == kUndefInt ? py::object(py::none()) : py::object(py::int_(value));
}

void def_field(py::class_<Config>& type, const char* attribute, int ncclConfig_t::* member) {
  type.def_property(
      attribute, [member](const Config& c) { return int_or_none(c.value.*member); },
      [member, attribute](Config& c, const py::object& value) {
        c.value.*member =
            value.is_none() ? kUndefInt : integer_from_python<int>(attribute, value.ptr());
      });
}

void def_field(py::class_<Config>& type, const char* attribute,
               const char* ncclConfig_t::* member) {
  type.def_property(
      attribute, [member](const Config& c) { return c.value.*member; },
      [member, attribute](Config& c, const py::object& value) {
        if (!value.is_none() && !py::isinstance<py::str>(value))
          throw_type_error(attribute, "a str or None", value.ptr());
        c.set(member, value);
      });
}

bool is_property(const py::handle& attribute) {
  return py::isinstance(attribute, reinterpret_cast<PyObject*>(&PyProperty_Type));
}

// The properties that differ from those of a new object.
py::dict settings_of(const py::object& self) {
  const py::object plain = py::cast(Config());
  py::dict settings;
  for (const auto& [name, attribute] : py::dict(py::type::of<Config>().attr("__dict__")))
    if (is_property(attribute))
      if (const py::object value = self.attr(name); !value.equal(plain.attr(name)))
        settings[name] = value;
  return settings;
}

// Each setting is set as an attribute, whose setter checks it.
Config make_config(const py::dict& settings) {
  py::object config = py::cast(Config());
  for (const auto& [name, value] : settings) {
    if (!is_property(py::getattr(py::type::of<Config>(), name, py::none())))
      throw py::type_error("Config() got an unexpected keyword argument '" +
                           std::string(py::str(name)) + "'");
    py::setattr(config, name, value);
  }
  return py::cast<Config>(config);
}

}  // namespace

Communicator::Options options_from_python(const py::object& config, int device) {
  Communicator::Options options;
  if (!config.is_none()) {
    if (!py::isinstance<Config>(config))
      throw_type_error("config", "a Config or None", config.ptr());
    const auto own = std::make_shared<const Config>(py::cast<const Config&>(config));
    options = own->options;
    options.config = own->value;
    options.strings = own;
  }
  options.device = device;
  return options;
}

std::optional<std::uint64_t> check_from_python(const py::object& value) {
  if (value.is_none()) return std::nullopt;
  if (py::isinstance<py::str>(value) && py::cast<std::string>(value) == "every") return 1;
  if (!PyIndex_Check(value.ptr())) throw_type_error("check", "'every' or an integer", value.ptr());
  const auto every = integer_from_python<std::int64_t>("check", value.ptr());
  if (every < 1) throw_value_error("check", every, " is below 1");
  return static_cast<std::uint64_t>(every);
}

void configure(Operation& operation, const Communicator& communicator, PyObject* config) {
  static ModuleClass type{"pynccl._internal.coll_config", "CollConfig"};
  const py::handle given(config);
  if (!type.is_base_of(Py_TYPE(config))) throw_type_error("config", "a CollConfig or None", config);
  if (const py::object event = given.attr("launch_event"); py::isinstance<Event>(event)) {
    const Library& library = py::cast<const Event&>(event).library();
    if (&library != &communicator.library())
      throw py::value_error("config.launch_event: belongs to " + library.path() +
                            ", the communicator to " + communicator.library().path());
  }
  operation.config = &py::cast<const Owned<ncclCollConfig_t>&>(given.attr("_struct")).value;
  operation.kind = configured(operation.kind);
  communicator.check_configured(operation);
  if (Group* group = Group::active()) group->batch().hold(config);
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
#define FIELD(since, type_, name, attribute, ...) def_field(type, #attribute, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD
  type.def(py::init([](const py::kwargs& settings) { return make_config(settings); }))
      .def_property(
          "init_timeout", [](const Config& c) { return c.options.init_timeout; },
          [](Config& c, const py::object& seconds) {
            c.options.init_timeout = seconds_from_python("init_timeout", seconds);
          },
          "The time limit for creating the communicator in seconds, or None.")
      .def_property(
          "timeout", [](const Config& c) { return c.options.timeout; },
          [](Config& c, const py::object& seconds) {
            c.options.timeout = seconds_from_python("timeout", seconds);
          },
          "The time limit of every operation in seconds, or None.")
      .def_property(
          "on_timeout",
          [](const Config& c) {
            const auto& policy = c.options.on_timeout;
            return policy ? policy_to_python(*policy) : py::none();
          },
          [](Config& c, const py::object& value) {
            c.options.on_timeout =
                value.is_none() ? std::nullopt : std::optional(policy_from_python(value));
          },
          "'raise', 'abort', a function, or None.")
      .def_property(
          "check", [](const Config& c) { return c.options.check; },
          [](Config& c, const py::object& value) { c.options.check = check_from_python(value); },
          "The number of collectives between comparisons, or None.")
      .def("__repr__",
           [](const py::object& self) {
             std::string text;
             for (const auto& [name, value] : settings_of(self))
               text += (text.empty() ? "" : ", ") + std::string(py::str(name)) + "=" +
                       std::string(py::repr(value));
             return "Config(" + text + ")";
           })
      .def(py::pickle(&settings_of, &make_config));
}

}  // namespace pynccl::python
