// The classes Config and CollConfig.
#include "python/comm/config.h"

#include "comm/stream.h"
#include "python/call/bind.h"
#include "python/call/held.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

py::object int_or_none(int value) {
  return value == kUndefInt ? py::object(py::none()) : py::object(py::int_(value));
}

template <class Class>
void def_field(Class& type, const char* attribute, int ncclConfig_t::* member) {
  type.def_property(
      attribute, [member](const Config& c) { return int_or_none(c.value.*member); },
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

// The attributes that differ from those of a new object.
template <class Class, std::size_t N>
py::dict settings_of(const py::object& self, const char* const (&attributes)[N]) {
  const py::object plain = py::cast(Class());
  py::dict settings;
  for (const char* attribute : attributes)
    if (const py::object value = self.attr(attribute); !value.equal(plain.attr(attribute)))
      settings[attribute] = value;
  return settings;
}

py::dict config_settings(const py::object& self) {
  return settings_of<Config>(self, kConfigAttributes);
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

// Returns an integer in a range; kUndefInt for None.
int bounded(const char* name, const py::object& value, int min_value, int max_value) {
  if (value.is_none()) return kUndefInt;
  const int number = integer_from_python<int>(name, value.ptr());
  if (number < min_value || number > max_value)
    throw py::value_error(std::string(name) + ": " + std::to_string(number) + " is not in [" +
                          std::to_string(min_value) + ", " + std::to_string(max_value) + "]");
  return number;
}

constexpr int kMaxCtas = std::numeric_limits<int>::max();
constexpr int kMaxClusterSize = 8;
constexpr int kAllPolicies = 0x03;  // all flags NCCL_CTA_POLICY_*

std::uint64_t tag_from_python(const py::object& value) {
  const auto tag = integer_from_python<std::uint64_t>("profiler_tag", value.ptr());
  if (tag >> 63)
    throw py::value_error("profiler_tag: " + std::to_string(tag) +
                          " is out of range, must be below 2**63: NCCL reserves the rest");
  return tag;
}

// The cudaEvent_t of a pynccl Event, a torch.cuda.Event, a CuPy event, or an integer.
cudaEvent_t event_from_python(const py::object& value, const Library*& library) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<Event>(value)) {
    const auto& event = py::cast<const Event&>(value);
    library = &event.library();
    return event.handle();
  }
  py::object handle = value;
  for (const char* attribute : {"cuda_event", "ptr", "handle"})
    if (py::hasattr(value, attribute)) {
      handle = value.attr(attribute);
      break;
    }
  if (!PyIndex_Check(handle.ptr()))
    throw_type_error("launch_event", "an Event, a torch or CuPy event, or an integer", value.ptr());
  const auto address = integer_from_python<std::uintptr_t>("launch_event", handle.ptr());
  if (address == 0)
    throw py::value_error("launch_event: " + std::string(py::repr(value)) +
                          " has no cudaEvent_t yet: torch creates it when it is first recorded");
  return reinterpret_cast<cudaEvent_t>(address);
}

CollConfig make_coll_config(const py::object& min_ctas, const py::object& max_ctas,
                            const py::object& nvls_ctas, const py::object& cga_cluster_size,
                            const py::object& algorithm, const py::object& force_algorithm,
                            const py::object& cta_policy, const py::object& profiler_tag,
                            const py::object& launch_event) {
  CollConfig config;
  ncclCollConfig_t& value = config.value;
  value.minCTAs = bounded("min_ctas", min_ctas, 1, kMaxCtas);
  value.maxCTAs = bounded("max_ctas", max_ctas, 1, kMaxCtas);
  if (value.maxCTAs != kUndefInt && value.minCTAs > value.maxCTAs)
    throw py::value_error("min_ctas: " + std::to_string(value.minCTAs) + " is above max_ctas, " +
                          std::to_string(value.maxCTAs));
  value.nvlsCTAs = bounded("nvls_ctas", nvls_ctas, 1, kMaxCtas);
  value.cgaClusterSize = bounded("cga_cluster_size", cga_cluster_size, 0, kMaxClusterSize);
  if (!algorithm.is_none()) {
    if (!py::isinstance<py::str>(algorithm))
      throw_type_error("algorithm", "a str or None", algorithm.ptr());
    if (py::len(algorithm) == 0) throw py::value_error("algorithm: the string is empty");
    config.set(&ncclCollConfig_t::algSelection, algorithm);
  }
  if (!py::isinstance<py::bool_>(force_algorithm))
    throw_type_error("force_algorithm", "a bool", force_algorithm.ptr());
  value.forceAlgSelection = py::cast<bool>(force_algorithm);
  value.CTAPolicy = bounded("cta_policy", cta_policy, 0, kAllPolicies);
  value.userProfilerTag = tag_from_python(profiler_tag);
  value.launchCompletionEvent = event_from_python(launch_event, config.event_library);
  config.launch_event = launch_event;
  return config;
}

constexpr const char* kCollConfigAttributes[] = {
    "min_ctas",        "max_ctas",   "nvls_ctas",    "cga_cluster_size", "algorithm",
    "force_algorithm", "cta_policy", "profiler_tag", "launch_event"};

py::dict coll_config_settings(const py::object& self) {
  return settings_of<CollConfig>(self, kCollConfigAttributes);
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

void configure(Operation& operation, const Communicator& communicator, PyObject* config) {
  if (!py::isinstance<CollConfig>(config))
    throw_type_error("config", "a CollConfig or None", config);
  const auto& given = py::cast<const CollConfig&>(py::handle(config));
  if (given.event_library && given.event_library != &communicator.library())
    throw py::value_error("config.launch_event: belongs to " + given.event_library->path() +
                          ", the communicator to " + communicator.library().path());
  operation.config = &given.value;
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
             return text_of_attributes("Config", config_settings(self));
           })
      .def(py::pickle(&config_settings, [](const py::dict& state) {
        py::object self = py::cast(Config());
        apply(self, state);
        return py::cast<Config>(self);
      }));
#define FIELD(since, type_, name, attribute) def_field(type, #attribute, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD

  const auto number = [](int ncclCollConfig_t::* member) {
    return [member](const CollConfig& c) { return int_or_none(c.value.*member); };
  };
  py::class_<CollConfig>(m, "CollConfig",
                         R"(The configuration of one collective (ncclCollConfig_t, NCCL 2.31).

Pass it as config= to a collective of a Communicator, with the same values on every rank. None
leaves a setting to the communicator's Config and to NCCL. A CollConfig is immutable and can be
reused.

Args:
    min_ctas, max_ctas: the minimum and maximum number of CTAs (thread blocks, channels).
    nvls_ctas: the maximum number of CTAs for NVLink SHARP.
    cga_cluster_size: the number of CTAs per cluster, 0 to 8. It must be the same in all collectives
        of a group.
    algorithm: the algorithms that NCCL may choose from, such as "ring" or "tree,ring", or "^nvls"
        for all except one. hostnccl supports "staged" (through shared memory) and "direct" (reads
        the memory of the other ranks). Both return the same bits.
    force_algorithm: True raises an error if the algorithm is unavailable. False lets NCCL choose
        another.
    cta_policy: a combination of the flags NCCL_CTA_POLICY_* of pynccl.raw.
    profiler_tag: a number below 2**63 that NCCL passes to profilers. hostnccl prints it in error
        texts.
    launch_event: an event to record when the operation has been launched, so that another stream
        can overlap with it; on CPUs, when the stream reaches the operation. A pynccl Event, a torch
        or CuPy event, or a cudaEvent_t as an integer, created without timing. Pass one on every
        rank and at most one per communicator in a group, and keep it alive until no stream waits
        for it. Requires NCCL 2.32.

On CPUs, where a rank is one thread, the CTAs, clusters and policies have no effect.

Raises:
    TypeError: an argument has the wrong type.
    ValueError: an argument is out of range, min_ctas is above max_ctas, or a torch event has no
        cudaEvent_t yet.)")
      .def(py::init(&make_coll_config), py::kw_only(), py::arg("min_ctas") = py::none(),
           py::arg("max_ctas") = py::none(), py::arg("nvls_ctas") = py::none(),
           py::arg("cga_cluster_size") = py::none(), py::arg("algorithm") = py::none(),
           py::arg("force_algorithm") = true, py::arg("cta_policy") = py::none(),
           py::arg("profiler_tag") = 0, py::arg("launch_event") = py::none())
      .def_property_readonly("min_ctas", number(&ncclCollConfig_t::minCTAs))
      .def_property_readonly("max_ctas", number(&ncclCollConfig_t::maxCTAs))
      .def_property_readonly("nvls_ctas", number(&ncclCollConfig_t::nvlsCTAs))
      .def_property_readonly("cga_cluster_size", number(&ncclCollConfig_t::cgaClusterSize))
      .def_property_readonly("algorithm", [](const CollConfig& c) { return c.value.algSelection; })
      .def_property_readonly("force_algorithm",
                             [](const CollConfig& c) { return c.value.forceAlgSelection == 1; })
      .def_property_readonly("cta_policy", number(&ncclCollConfig_t::CTAPolicy))
      .def_property_readonly("profiler_tag",
                             [](const CollConfig& c) { return c.value.userProfilerTag; })
      .def_property_readonly("launch_event", [](const CollConfig& c) { return c.launch_event; })
      .def("__repr__",
           [](const py::object& self) {
             return text_of_attributes("CollConfig", coll_config_settings(self));
           })
      .def("__reduce__", [](const py::object& self) {
        return py::make_tuple(
            py::module_::import("functools")
                .attr("partial")(py::type::of(self), **coll_config_settings(self)),
            py::tuple());
      });
}

}  // namespace pynccl::python
