// Device communicators: the classes CommProperties, DeviceComm and DeviceBuffer, and the methods of
// Communicator for them and for teams.
#include <string>
#include <utility>

#include "abi/nccl_device_types.h"
#include "comm/device_communicator.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/comm/group.h"
#include "python/convert/integer.h"

namespace pynccl::python {
namespace {

// Converts a Team of pynccl._internal.team. Throws TypeError for other objects.
ncclTeam team_from_python(const char* argument, const py::handle& team) {
  static PyObject* const type =
      py::object(py::module_::import("pynccl._internal.team").attr("Team")).release().ptr();
  if (!py::isinstance(team, type)) throw_type_error(argument, "a Team", team.ptr());
  const auto field = [&](const char* name) {
    return integer_from_python<int>(argument, py::object(team.attr(name)).ptr());
  };
  return {field("nranks"), field("rank"), field("stride")};
}

// A team argument, and a rank of this team.
std::pair<ncclTeam, int> member_from_python(const py::object& team, const py::object& rank) {
  const ncclTeam value = team_from_python("team", team);
  return {value, py::cast<int>(team.attr("_member")(rank))};
}

template <TeamKind kind>
py::object team_from(Communicator& communicator) {
  communicator.handle();
  const ncclTeam team = [&] {
    const GilReleased released;
    return team_of(communicator, kind);
  }();
  return py::module_::import("pynccl._internal.team")
      .attr("Team")(team.nRanks, team.rank, team.stride);
}

int to_world(Communicator& communicator, const py::object& team, const py::object& rank) {
  communicator.handle();
  const auto [value, member] = member_from_python(team, rank);
  const int world = rank_to_world(communicator, value, member);
  if (world < 0 || world >= communicator.nranks())
    throw py::value_error("team: " + std::string(py::repr(team)) +
                          " is not a part of the communicator");
  return world;
}

std::optional<int> to_lsa(Communicator& communicator, const py::object& team,
                          const py::object& rank) {
  communicator.handle();
  const auto [value, member] = member_from_python(team, rank);
  const int lsa = rank_to_lsa(communicator, value, member);
  if (lsa < 0 || lsa >= team_of(communicator, TeamKind::kLsa).nRanks) return std::nullopt;
  return lsa;
}

// The names of NCCL's GIN types and connections in Python.
using abi::ncclGinConnectionType_t;
using abi::ncclGinType_t;

constexpr std::pair<const char*, ncclGinType_t> kGinTypes[] = {
    {"none", abi::NCCL_GIN_TYPE_NONE},       {"proxy", abi::NCCL_GIN_TYPE_PROXY},
    {"gdaki", abi::NCCL_GIN_TYPE_GDAKI},     {"gpi", abi::NCCL_GIN_TYPE_GPI},
    {"efa_gda", abi::NCCL_GIN_TYPE_EFA_GDA},
};
constexpr std::pair<const char*, ncclGinConnectionType_t> kGinConnections[] = {
    {"none", abi::NCCL_GIN_CONNECTION_NONE},
    {"full", abi::NCCL_GIN_CONNECTION_FULL},
    {"rail", abi::NCCL_GIN_CONNECTION_RAIL},
    {"custom", abi::NCCL_GIN_CONNECTION_CUSTOM_STRIDE},
};

// Returns the number as text if the value has no name yet.
template <class Table, class Value>
py::object name_in(const Table& table, Value value) {
  for (const auto& [name, number] : table)
    if (number == value) return py::str(name);
  return py::str(std::to_string(static_cast<unsigned>(value)));
}
py::object gin_type_name(ncclGinType_t value) { return name_in(kGinTypes, value); }
py::object gin_connection_name(ncclGinConnectionType_t value) {
  return name_in(kGinConnections, value);
}

// In NCCL 2.29.2, ginType is one byte after the flags.
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

using PropertiesClass = py::class_<CommunicatorProperties>;

std::vector<const char*> property_attributes;  // in the order of their definition

template <class Get>
void def_property(PropertiesClass& type, const char* attribute, Get&& get, const char* doc) {
  property_attributes.push_back(attribute);
  type.def_property_readonly(attribute, std::forward<Get>(get), doc);
}

template <class Field>
void def_field(PropertiesClass& type, const char* attribute, Field ncclCommProperties_t::* member,
               const char* doc) {
  const CommunicatorProperties none{};
  const std::size_t end =
      static_cast<std::size_t>(reinterpret_cast<const char*>(&(none.value.*member)) -
                               reinterpret_cast<const char*>(&none.value)) +
      sizeof(Field);
  def_property(
      type, attribute,
      [member, end](const CommunicatorProperties& p) -> py::object {
        if (end > p.size) return py::none();
        return value_of(p.value.*member);
      },
      doc);
}

CommunicatorProperties properties(Communicator& communicator) {
  communicator.handle();
  const GilReleased released;
  return query_properties(communicator);
}

// A device communicator that is deleted without close() stays, with a ResourceWarning.
class OwnedDeviceCommunicator : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;
  ~OwnedDeviceCommunicator() {
    if (!is_open()) return;
    warn_unclosed("a pynccl DeviceComm was not closed; it stays until its communicator is closed");
  }
};

// One buffer of resource memory.
struct DeviceBuffer {
  std::shared_ptr<DeviceCommunicator> owner;
  std::size_t index;

  std::size_t nbytes() const { return owner->buffer_sizes()[index]; }
  std::uintptr_t address(int lsa_rank) const {
    return reinterpret_cast<std::uintptr_t>(owner->buffer(index, lsa_rank));
  }
};

int count_from_python(const char* argument, const py::object& value) {
  const int count = integer_from_python<int>(argument, value.ptr());
  if (count < 0)
    throw py::value_error(std::string(argument) + ": " + std::to_string(count) + " is negative");
  return count;
}

template <class Table>
auto named(const char* argument, const Table& table, const std::string& name) {
  std::string names;
  for (const auto& [known, value] : table) {
    if (name == known) return value;
    names += std::string(names.empty() ? "'" : ", '") + known + "'";
  }
  throw py::value_error(std::string(argument) + ": '" + name + "' is not one of " + names);
}

// Converts a version argument: 23203 or "2.32.3".
int version_from_python(const char* argument, const py::object& value) {
  if (!py::isinstance<py::str>(value)) return count_from_python(argument, value);
  const auto text = py::cast<std::string>(value);
  int major = 0, minor = 0, patch = 0, end = 0;
  const int read = std::sscanf(text.c_str(), "%d.%d.%d%n", &major, &minor, &patch, &end);
  if (read != 3 || static_cast<std::size_t>(end) != text.size() || major < 2 || minor < 0 ||
      minor > 99 || patch < 0 || patch > 99)
    throw py::value_error(std::string(argument) + ": '" + text +
                          "' is not a version of NCCL such as '2.32.3'");
  return major * 10000 + minor * 100 + patch;
}

std::vector<std::size_t> sizes_from_python(const py::object& buffers) {
  if (!py::isinstance<py::iterable>(buffers) || py::isinstance<py::str>(buffers))
    throw_type_error("buffers", "sizes in bytes", buffers.ptr());
  std::vector<std::size_t> sizes;
  for (const py::handle size : buffers) {
    sizes.push_back(integer_from_python<std::size_t>("buffers", size.ptr()));
    if (sizes.back() == 0) throw py::value_error("buffers: a size is 0");
  }
  return sizes;
}

std::vector<ncclTeam> teams_from_python(const py::object& teams) {
  if (!py::isinstance<py::iterable>(teams))
    throw_type_error("teams", "Teams of the communicator", teams.ptr());
  std::vector<ncclTeam> values;
  for (const py::handle team : teams) values.push_back(team_from_python("teams", team));
  return values;
}

std::shared_ptr<DeviceCommunicator> make_device_comm(
    std::shared_ptr<Communicator> communicator, const py::object& lsa_barriers,
    const py::object& barriers, const py::object& rail_gin_barriers,
    const py::object& world_gin_barriers, bool lsa_multimem, const py::object& gin_contexts,
    const py::object& gin_signals, const py::object& gin_counters,
    const std::string& gin_connection, bool gin_exclusive_contexts,
    const py::object& gin_queue_depth, const py::object& gin_traffic_class, bool gin_strong_signals,
    bool gin_va_signals, const py::object& gin_stride, const std::optional<std::string>& gin_type,
    const py::object& cft, const py::object& cft_barriers, const py::object& buffers,
    const py::object& teams, const py::object& version) {
  communicator->handle();
  DeviceCommunicator::Request request;
  ncclDevCommRequirements_t& fields = request.fields;
  fields.lsaBarrierCount = count_from_python("lsa_barriers", lsa_barriers);
  fields.barrierCount = count_from_python("barriers", barriers);
  fields.railGinBarrierCount = count_from_python("rail_gin_barriers", rail_gin_barriers);
  fields.worldGinBarrierCount = count_from_python("world_gin_barriers", world_gin_barriers);
  fields.lsaMultimem = lsa_multimem;
  fields.ginContextCount = count_from_python("gin_contexts", gin_contexts);
  fields.ginSignalCount = count_from_python("gin_signals", gin_signals);
  fields.ginCounterCount = count_from_python("gin_counters", gin_counters);
  fields.ginConnectionType = named("gin_connection", kGinConnections, gin_connection);
  fields.ginExclusiveContexts = gin_exclusive_contexts;
  fields.ginQueueDepth = count_from_python("gin_queue_depth", gin_queue_depth);
  if (!gin_traffic_class.is_none())
    fields.ginTrafficClass = count_from_python("gin_traffic_class", gin_traffic_class);
  fields.ginStrongSignalsRequired = gin_strong_signals;
  fields.ginVaSignalsRequired = gin_va_signals;
  fields.ginCustomStride = count_from_python("gin_stride", gin_stride);
  if (gin_type) fields.ginType = named("gin_type", kGinTypes, *gin_type);
  fields.cftCaps = count_from_python("cft", cft);
  fields.cftBarrierCount = count_from_python("cft_barriers", cft_barriers);
  request.buffers = sizes_from_python(buffers);
  request.teams = teams_from_python(teams);
  if (!version.is_none()) {
    request.version = version_from_python("version", version);
    if (request.version == 0) throw py::value_error("version: it is 0");
  }
  auto created = std::make_shared<OwnedDeviceCommunicator>(std::move(communicator), request);
  if (Group* group = Group::active()) {
    group->record(std::shared_ptr<DeviceCommunicator>(created));
    return created;
  }
  const GilReleased released;
  DeviceCommunicator::create({created.get()});
  return created;
}

py::bytes to_bytes(const DeviceCommunicator& d) {
  return {static_cast<const char*>(d.data()), d.nbytes()};
}

py::object as_argument(const DeviceCommunicator& d, const py::object& version) {
  const py::bytes bytes = to_bytes(d);
  if (!version.is_none()) d.check_version(version_from_python("version", version));
  const py::module_ numpy = py::module_::import("numpy");
  return numpy.attr("frombuffer")(bytes, "V" + std::to_string(d.nbytes()))[py::int_(0)];
}

py::tuple buffers_of(const std::shared_ptr<DeviceCommunicator>& d) {
  d->data();  // throws if it is closed
  py::tuple buffers(d->buffer_sizes().size());
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i] = DeviceBuffer{d, i};
  return buffers;
}

py::tuple multimem_pointers(const DeviceCommunicator& d) {
  d.data();
  py::tuple pointers(d.teams());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    const void* pointer = d.multimem(i);
    pointers[i] = pointer ? py::object(py::int_(reinterpret_cast<std::uintptr_t>(pointer)))
                          : py::object(py::none());
  }
  return pointers;
}

constexpr char kDeviceCommDoc[] =
    R"(A device communicator, with which kernels communicate (ncclDevComm_t, NCCL 2.28).

Created by Communicator.device_comm(). Pass it to a kernel by value, as bytes(dc) or, with CuPy's
RawKernel, as dc.as_argument(version); or pass dc.pointer(), the address of a copy. Its layout is
that of the NCCL headers of dc.version. Do not pass it to kernels compiled with other headers.)";

constexpr char kMakeDoc[] =
    R"(Create a device communicator (ncclDevCommCreate, NCCL 2.28).

All ranks must call it with the same arguments, and create and close windows and device
communicators in the same order. The call waits for all of them, even with a non-blocking
communicator. Inside group() the device communicator is ready when the group ends.

Args:
    lsa_barriers: the number of barriers of the LSA team: one for each thread block that uses one.
    barriers: the number of barriers of all ranks.
    rail_gin_barriers, world_gin_barriers: the number of barriers over GIN, of the rail team and of
        all ranks.
    lsa_multimem: whether kernels use multimem instructions on the memory of the LSA team.
    gin_contexts: the number of GIN contexts, a hint for NCCL.
    gin_signals, gin_counters: the number of GIN signals and counters.
    gin_connection: the ranks that GIN connects: "none", "full", "rail", or "custom" for every
        gin_stride-th. From NCCL 2.29.7 on, it is required for every use of GIN.
    gin_exclusive_contexts: whether no other device communicator may share its contexts.
    gin_queue_depth: the number of entries of a GIN queue; 0 leaves the choice to NCCL.
    gin_traffic_class: the traffic class; None leaves the choice to NCCL.
    gin_strong_signals, gin_va_signals: False if kernels do not use such signals.
    gin_stride: the stride for gin_connection "custom".
    gin_type: "proxy", "gdaki", "gpi" or "efa_gda"; None allows any.
    cft: an ncclCftCap_t as an integer (NCCL 2.31).
    cft_barriers: the number of CFT barriers.
    buffers: sizes in bytes. For each, every rank allocates zero-filled memory of this size, which
        the LSA team can load from and store to.
    teams: the Teams that need addresses for multimem instructions.
    version: the version of the NCCL headers that the kernels are compiled with, as an
        NCCL_VERSION_CODE or a str such as "2.30.7". Kernels with pynccl/device.h export it as
        pynccl_device_version. None is the version of the loaded library.

Returns:
    A DeviceComm. If it is deleted without close(), it stays until the communicator is closed.

Raises:
    TypeError: an invalid argument.
    ValueError: an invalid argument, the communicator is closed, the library does not support that
        version, or the version does not support one of the settings. Nothing was called.
    MissingFunctionError: the library is older than NCCL 2.28.
    NcclError: NCCL does not support the device API between these ranks, or failed.)";

}  // namespace

void bind_device_team(py::module_&) {
  add_method<Communicator>("team_world", &team_from<TeamKind::kWorld>,
                           R"(The team of all ranks (ncclTeamWorld, NCCL 2.28).

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
  add_method<Communicator>(
      "team_lsa", &team_from<TeamKind::kLsa>,
      R"(The ranks whose memory this one can load from and store to (ncclTeamLsa, NCCL 2.28).

On CPUs, and on one machine with NVLink or peer access, these are all ranks.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.
    NcclError: NCCL failed.)");
  add_method<Communicator>(
      "team_rail", &team_from<TeamKind::kRail>,
      R"(The ranks with this rank's position in each LSA team (ncclTeamRail, NCCL 2.28).

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.
    NcclError: NCCL failed.)");
  add_method<Communicator>(
      "rank_to_world", &to_world, py::arg("team"), py::arg("rank"),
      R"(Convert a rank of a team to a rank of the communicator (ncclTeamRankToWorld, NCCL 2.28).

Args:
    team: a Team of this communicator.
    rank: a rank of the team.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
  add_method<Communicator>(
      "rank_to_lsa", &to_lsa, py::arg("team"), py::arg("rank"),
      R"(Convert a rank of a team to a rank of the LSA team (ncclTeamRankToLsa, NCCL 2.28).

Args:
    team: a Team of this communicator.
    rank: a rank of the team.

Returns:
    The rank; None if it is not in this rank's LSA team.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
}

void bind_device_properties(py::module_& m) {
  PropertiesClass type(
      m, "CommProperties",
      R"(The properties of a communicator (ncclCommProperties_t), from Communicator.properties().

Properties that the loaded library does not report are None.)");
  using P = ncclCommProperties_t;
  def_field(type, "rank", &P::rank, "The rank.");
  def_field(type, "nranks", &P::nRanks, "The number of ranks.");
  def_field(type, "cuda_device", &P::cudaDev, "The CUDA device's ordinal.");
  def_field(type, "nvml_device", &P::nvmlDev, "The NVML device's index.");
  def_field(type, "device_api_support", &P::deviceApiSupport,
            "Whether device communicators can be created.");
  def_field(type, "multimem_support", &P::multimemSupport,
            "Whether multimem instructions are supported.");
  def_property(type, "gin_type", &gin_type,
               "How kernels reach other LSA teams: 'none', 'proxy', 'gdaki', 'gpi' or 'efa_gda'.");
  def_field(type, "n_lsa_teams", &P::nLsaTeams, "The number of LSA teams (NCCL 2.29.7).");
  def_field(type, "host_rma_support", &P::hostRmaSupport,
            "Whether one-sided operations of the host are supported (NCCL 2.29.7).");
  def_field(type, "railed_gin_type", &P::railedGinType,
            "Like gin_type, within rails (NCCL 2.29.7).");
  def_field(type, "comm_hash", &P::commHash, "A number that is equal on all ranks (NCCL 2.31).");
  def_field(type, "gin_min_stride", &P::ginMinStride,
            "The minimum stride of GIN connections (NCCL 2.31).");
  def_field(type, "gin_connection_type", &P::ginConnectionType,
            "The ranks that GIN can connect: 'none', 'full', 'rail' or 'custom' (NCCL 2.31).");
  def_property(type, "gin_support", &gin_support,
               "The names of the supported GIN types, a tuple (NCCL 2.31).");
  def_field(type, "dev_comm_size", &P::devCommRuntimeVersionSize,
            "The size of this library's ncclDevComm in bytes (NCCL 2.31).");
  def_field(type, "cft_support", &P::cftSupport, "Whether CFT is supported (NCCL 2.32).");
  def_field(type, "cft_multicast_support", &P::cftMulticastSupport,
            "Whether CFT multicast is supported (NCCL 2.32).");
  def_field(type, "cft_counted_support", &P::cftCountedSupport,
            "Whether counted CFT windows are supported (NCCL 2.32).");
  type.def("__repr__", [](const py::object& self) {
    py::dict known;
    for (const char* attribute : property_attributes)
      if (const py::object value = self.attr(attribute); !value.is_none()) known[attribute] = value;
    return text_of_attributes("CommProperties", known);
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

void bind_device_comm(py::module_& m) {
  py::class_<DeviceBuffer>(m, "DeviceBuffer",
                           "Resource memory of a DeviceComm, the same size on all ranks.")
      .def_property_readonly("nbytes", &DeviceBuffer::nbytes, "The size in bytes.")
      .def_property_readonly(
          "handle", [](const DeviceBuffer& b) { return b.owner->buffer_handle(b.index); },
          "The ncclDevResourceHandle_t, for ncclGetResourceBuffer...() in kernels.")
      .def_property_readonly(
          "address", [](const DeviceBuffer& b) { return b.address(b.owner->lsa().rank); },
          "The address of this rank's memory as an integer.")
      .def(
          "peer",
          [](const DeviceBuffer& b, const py::object& lsa_rank) {
            return b.address(integer_from_python<int>("lsa_rank", lsa_rank.ptr()));
          },
          py::arg("lsa_rank"),
          R"(The address of this buffer on another rank of the LSA team, as an integer.

Args:
    lsa_rank: the rank in Communicator.team_lsa().

Raises:
    TypeError, ValueError: an invalid rank, or the device communicator is closed.)");

  py::class_<DeviceCommunicator, std::shared_ptr<DeviceCommunicator>> type(
      m, "DeviceComm", kDeviceCommDoc, py::release_gil_before_calling_cpp_dtor());
  add_closing(type);
  type.def_property_readonly(
          "rank", [](const DeviceCommunicator& d) { return d.communicator()->rank(); },
          "The rank in the communicator.")
      .def_property_readonly(
          "nranks", [](const DeviceCommunicator& d) { return d.communicator()->nranks(); },
          "The number of ranks of the communicator.")
      .def_property_readonly(
          "lsa_rank",
          [](const DeviceCommunicator& d) {
            d.data();
            return d.lsa().rank;
          },
          "The rank in the LSA team.")
      .def_property_readonly(
          "lsa_size",
          [](const DeviceCommunicator& d) {
            d.data();
            return d.lsa().nRanks;
          },
          "The number of ranks of the LSA team.")
      .def_property_readonly("version", &DeviceCommunicator::version,
                             "The version of the headers that define its layout, as an "
                             "NCCL_VERSION_CODE.")
      .def_property_readonly("nbytes", &DeviceCommunicator::nbytes,
                             "The size of the struct in bytes.")
      .def_property_readonly("closed", &DeviceCommunicator::closed,
                             "Whether it or its communicator is closed.")
      .def_property_readonly("buffers", &buffers_of, "The requested DeviceBuffers, a tuple.")
      .def_property_readonly("multimem_pointers", &multimem_pointers,
                             "The address for multimem instructions of each requested team "
                             "(ncclMultimemHandle_t.mcBasePtr), None if there is none; a tuple.")
      .def("__bytes__", &to_bytes)
      .def("as_argument", &as_argument, py::arg("version"),
           R"(The struct as a by-value argument of a kernel.

Args:
    version: the version of the NCCL headers that the kernel is compiled with, as an
        NCCL_VERSION_CODE or a str such as "2.30.7": the kernel's pynccl_device_version. None skips
        the check.

Returns:
    A numpy.void of nbytes bytes, which CuPy's RawKernel accepts.

Raises:
    TypeError: version is not a version.
    ValueError: the kernel is compiled with another version than dc.version, or the device
        communicator is closed.
    ImportError: NumPy is not installed.)")
      .def(
          "pointer",
          [](DeviceCommunicator& d) {
            const GilReleased released;
            return reinterpret_cast<std::uintptr_t>(d.device_data());
          },
          R"(The address of a copy of the struct in device memory; on CPUs, of the struct itself.

For kernels that take a pointer (Triton, Numba). Valid until close().

Returns:
    The address as an integer.

Raises:
    ValueError: the device communicator is closed.
    DriverError, NcclError: the memory for the copy cannot be allocated.)")
      .def("close", &DeviceCommunicator::close, py::call_guard<GilReleased>(),
           R"(Free the resources (ncclDevCommDestroy). Closing twice is allowed.

On GPUs it waits for all work on the device. On CPUs the functions that use it must have returned;
synchronize their streams first. The other ranks must not use this rank's resource memory
afterwards. All ranks close their windows and device communicators in the same order.

Raises:
    ValueError: the device communicator is still being created, or a graph is being captured.
    NcclError: NCCL failed.)")
      .def("__repr__", [](const DeviceCommunicator& d) {
        if (d.closed()) return std::string("<pynccl.nccl.DeviceComm closed>");
        return "<pynccl.nccl.DeviceComm for kernels of NCCL " + version_text(d.version()) + ">";
      });

  add_method<Communicator>(
      "device_comm", &make_device_comm, py::kw_only(), py::arg("lsa_barriers") = 0,
      py::arg("barriers") = 0, py::arg("rail_gin_barriers") = 0, py::arg("world_gin_barriers") = 0,
      py::arg("lsa_multimem") = false, py::arg("gin_contexts") = 4, py::arg("gin_signals") = 0,
      py::arg("gin_counters") = 0, py::arg("gin_connection") = "none",
      py::arg("gin_exclusive_contexts") = false, py::arg("gin_queue_depth") = 0,
      py::arg("gin_traffic_class") = py::none(), py::arg("gin_strong_signals") = true,
      py::arg("gin_va_signals") = true, py::arg("gin_stride") = 1, py::arg("gin_type") = py::none(),
      py::arg("cft") = 0, py::arg("cft_barriers") = 0, py::arg("buffers") = py::tuple(),
      py::arg("teams") = py::tuple(), py::arg("version") = py::none(), kMakeDoc);
}

}  // namespace pynccl::python
