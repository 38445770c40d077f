// The class CommProperties and Communicator.properties().
#include "comm/device_communicator.h"
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/gin.h"
#include "python/objects/team.h"

namespace pynccl::python {
namespace {

// NCCL 2.29.2 has ginType as one byte after the flags.
constexpr std::size_t kFirstGinType = 34;
constexpr std::size_t kFirstSize = 40;

py::object gin_type(const CommunicatorProperties& p) {
  if (p.size != kFirstSize) return gin_type_name(p.value.ginType);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&p.value);
  return gin_type_name(static_cast<ncclGinType_t>(bytes[kFirstGinType]));
}

template <class Field>
py::object value_of(Field value) {
  return py::cast(value);
}
template <>
py::object value_of(ncclGinType_t value) {
  return gin_type_name(value);
}
template <>
py::object value_of(ncclGinConnectionType_t value) {
  return gin_connection_name(value);
}

py::object gin_support(const CommunicatorProperties& p) {
  if (p.size < offsetof(ncclCommProperties_t, devCommRuntimeVersionSize)) return py::none();
  py::list types;
  for (int type = 1; type < 64; ++type)
    if (p.value.ginSupport[type]) types.append(gin_type_name(static_cast<ncclGinType_t>(type)));
  return py::tuple(types);
}

template <class Class, class Field>
void def_field(Class& type, const char* attribute, Field ncclCommProperties_t::* member,
               const char* doc) {
  const CommunicatorProperties none{};
  const std::size_t end =
      static_cast<std::size_t>(reinterpret_cast<const char*>(&(none.value.*member)) -
                               reinterpret_cast<const char*>(&none.value)) +
      sizeof(Field);
  type.def_property_readonly(
      attribute,
      [member, end](const CommunicatorProperties& p) -> py::object {
        if (end > p.size) return py::none();
        return value_of(p.value.*member);
      },
      doc);
}

constexpr const char* kPropertyAttributes[] = {"rank",
                                               "nranks",
                                               "cuda_device",
                                               "nvml_device",
                                               "device_api_support",
                                               "multimem_support",
                                               "gin_type",
                                               "n_lsa_teams",
                                               "host_rma_support",
                                               "railed_gin_type",
                                               "comm_hash",
                                               "gin_min_stride",
                                               "gin_connection_type",
                                               "gin_support",
                                               "dev_comm_size",
                                               "cft_support",
                                               "cft_multicast_support",
                                               "cft_counted_support"};

CommunicatorProperties properties(Communicator& communicator) {
  communicator.handle();
  const GilReleased released;
  return query_properties(communicator);
}

}  // namespace

void bind_device_properties(py::module_& m) {
  py::class_<CommunicatorProperties> type(
      m, "CommProperties",
      R"(The properties of a communicator (ncclCommProperties_t); returned by Communicator.properties().

Attributes that the loaded library does not have are None.)");
  using P = ncclCommProperties_t;
  def_field(type, "rank", &P::rank, "The rank.");
  def_field(type, "nranks", &P::nRanks, "The number of ranks.");
  def_field(type, "cuda_device", &P::cudaDev, "The CUDA device's ordinal.");
  def_field(type, "nvml_device", &P::nvmlDev, "The NVML device's index.");
  def_field(type, "device_api_support", &P::deviceApiSupport,
            "Whether device communicators can be created.");
  def_field(type, "multimem_support", &P::multimemSupport,
            "Whether there are addresses for multimem instructions.");
  type.def_property_readonly(
      "gin_type", &gin_type,
      "How kernels reach other LSA teams: 'none', 'proxy', 'gdaki', 'gpi' or 'efa_gda'.");
  def_field(type, "n_lsa_teams", &P::nLsaTeams, "The number of LSA teams (NCCL 2.29.7).");
  def_field(type, "host_rma_support", &P::hostRmaSupport,
            "Whether the host can put and signal (NCCL 2.29.7).");
  def_field(type, "railed_gin_type", &P::railedGinType,
            "The same as gin_type, within rails (NCCL 2.29.7).");
  def_field(type, "comm_hash", &P::commHash, "A number that is the same on all ranks (NCCL 2.31).");
  def_field(type, "gin_min_stride", &P::ginMinStride,
            "The least stride of GIN connections (NCCL 2.31).");
  def_field(type, "gin_connection_type", &P::ginConnectionType,
            "The ranks that GIN can connect: 'none', 'full', 'rail' or 'custom' (NCCL 2.31).");
  type.def_property_readonly("gin_support", &gin_support,
                             "The names of all supported GIN types, a tuple (NCCL 2.31).");
  def_field(type, "dev_comm_size", &P::devCommRuntimeVersionSize,
            "The size of this library's ncclDevComm in bytes (NCCL 2.31).");
  def_field(type, "cft_support", &P::cftSupport, "Whether CFT is supported (NCCL 2.32).");
  def_field(type, "cft_multicast_support", &P::cftMulticastSupport,
            "Whether CFT multicast is supported (NCCL 2.32).");
  def_field(type, "cft_counted_support", &P::cftCountedSupport,
            "Whether counted CFT windows are supported (NCCL 2.32).");
  type.def("__repr__", [](const py::object& self) {
    std::string text;
    for (const char* attribute : kPropertyAttributes) {
      const py::object value = self.attr(attribute);
      if (value.is_none()) continue;
      if (!text.empty()) text += ", ";
      text += std::string(attribute) + "=" + std::string(py::repr(value));
    }
    return "CommProperties(" + text + ")";
  });

  add_method<Communicator>(
      "properties", &properties,
      R"(The properties of the communicator (ncclCommQueryProperties, NCCL 2.29).

Returns:
    CommProperties.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: NCCL failed.)");
}

}  // namespace pynccl::python
