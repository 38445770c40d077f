// The class CollConfig.
#include "comm/stream.h"
#include "python/call/bind.h"
#include "python/comm/coll_config.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

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

py::object number(int value) {
  return value == kUndefInt ? py::object(py::none()) : py::object(py::int_(value));
}

constexpr const char* kCollConfigAttributes[] = {
    "min_ctas",        "max_ctas",   "nvls_ctas",    "cga_cluster_size", "algorithm",
    "force_algorithm", "cta_policy", "profiler_tag", "launch_event"};

// The attributes with values other than the defaults.
py::dict coll_config_settings(const py::object& self) {
  static const py::object& plain = *new py::object(py::cast(CollConfig()));
  py::dict set;
  for (const char* attribute : kCollConfigAttributes)
    if (const py::object value = self.attr(attribute); !value.equal(plain.attr(attribute)))
      set[attribute] = value;
  return set;
}

std::string text(const py::object& self) {
  std::string all;
  for (const auto& [key, value] : coll_config_settings(self)) {
    if (!all.empty()) all += ", ";
    all += std::string(py::str(key)) + "=" + std::string(py::repr(value));
  }
  return "CollConfig(" + all + ")";
}

}  // namespace

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

void bind_coll_config(py::module_& m) {
  const auto attribute = [](int ncclCollConfig_t::* member) {
    return [member](const CollConfig& c) { return number(c.value.*member); };
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
      .def_property_readonly("min_ctas", attribute(&ncclCollConfig_t::minCTAs))
      .def_property_readonly("max_ctas", attribute(&ncclCollConfig_t::maxCTAs))
      .def_property_readonly("nvls_ctas", attribute(&ncclCollConfig_t::nvlsCTAs))
      .def_property_readonly("cga_cluster_size", attribute(&ncclCollConfig_t::cgaClusterSize))
      .def_property_readonly("algorithm", [](const CollConfig& c) { return c.value.algSelection; })
      .def_property_readonly("force_algorithm",
                             [](const CollConfig& c) { return c.value.forceAlgSelection == 1; })
      .def_property_readonly("cta_policy", attribute(&ncclCollConfig_t::CTAPolicy))
      .def_property_readonly("profiler_tag",
                             [](const CollConfig& c) { return c.value.userProfilerTag; })
      .def_property_readonly("launch_event", [](const CollConfig& c) { return c.launch_event; })
      .def("__repr__", &text)
      .def("__reduce__", [](const py::object& self) {
        return py::make_tuple(
            py::module_::import("functools")
                .attr("partial")(py::type::of(self), **coll_config_settings(self)),
            py::tuple());
      });
}

}  // namespace pynccl::python
