// The class Config.
#include "python/objects/config.h"

#include "python/objects/bind.h"

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

constexpr const char* kAttributes[] = {
#define FIELD(since, type, name, attribute) #attribute,
#include "abi/config_fields.inc"
#undef FIELD
    "init_timeout",
    "timeout",
};

// The settings that are not None.
py::dict settings(const py::object& self) {
  py::dict set;
  for (const char* attribute : kAttributes)
    if (const py::object value = self.attr(attribute); !value.is_none()) set[attribute] = value;
  return set;
}

void apply(const py::object& self, const py::dict& values) {
  for (const auto& [key, value] : values) {
    const auto name = std::string(py::str(key));
    const auto* end = std::end(kAttributes);
    if (std::find(std::begin(kAttributes), end, name) == end)
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
  return options;
}

void bind_config(py::module_& m) {
  py::class_<Config> type(m, "Config", R"(The configuration of a communicator (ncclConfig_t).

Every field of ncclConfig_t is a keyword and an attribute in snake case (cgaClusterSize is
cga_cluster_size). None leaves the choice to NCCL. A setting that the loaded NCCL is too old for is
a ValueError when the communicator is made.

Args:
    init_timeout: the time limit in seconds for making the communicator, until all ranks have
        joined; after that the ranks that have joined raise NcclTimeoutError. None is the library's
        own limit (hostnccl: HOSTNCCL_INIT_TIMEOUT, 300 s).
    timeout: the time limit in seconds for every operation, from its call until it is done, and for
        every other call that waits for ranks. What takes longer raises NcclTimeoutError, and the
        communicator is revoked (aborted where NCCL is older than 2.28.7): it can still be shrunk.
        float("inf") is no limit; None is PYNCCL_TIMEOUT from the environment, else 1800 seconds.

Raises:
    TypeError: an unknown setting, or a value of the wrong type.
    ValueError: an integer out of range, or a time limit that is not above 0.)");
  // The keywords are those of the table. Each is set as an attribute, which checks it.
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
          "The time limit of making the communicator in seconds, or None.")
      .def_property(
          "timeout", [](const Config& c) { return c.timeout; },
          [](Config& c, std::optional<double> seconds) {
            c.timeout = checked_seconds("timeout", seconds);
          },
          "The time limit of every operation in seconds, or None.")
      .def("__repr__",
           [](const py::object& self) {
             std::string text;
             for (const auto& [key, value] : settings(self)) {
               if (!text.empty()) text += ", ";
               text += std::string(py::str(key)) + "=" + std::string(py::repr(value));
             }
             return "Config(" + text + ")";
           })
      .def(py::pickle(&settings, [](const py::dict& state) {
        py::object self = py::cast(Config());
        apply(self, state);
        return py::cast<Config>(self);
      }));
#define FIELD(since, type_, name, attribute) def_field(type, #attribute, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD
}

}  // namespace pynccl::python
