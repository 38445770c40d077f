// Device communicators: the classes DeviceComm and DeviceBuffer, and the methods of Communicator
// for teams. The rest is in pynccl/_internal/device_comm.py.
#include <string>
#include <utility>

#include "abi/nccl_device_types.h"
#include "comm/device_communicator.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/call/modules.h"
#include "python/comm/group.h"
#include "python/convert/integer.h"

namespace pynccl::python {
namespace {

// Converts a Team of pynccl._internal.team. Throws TypeError for other objects.
ncclTeam team_from_python(const char* argument, const py::handle& team) {
  static ModuleClass type{"pynccl._internal.team", "Team"};
  if (!type.is_base_of(Py_TYPE(team.ptr()))) throw_type_error(argument, "a Team", team.ptr());
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
    throw_value_error("team", std::string(py::repr(team)), " is not a part of the communicator");
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

ncclCommProperties_t properties(Communicator& communicator) {
  communicator.handle();
  const GilReleased released;
  return query_properties(communicator);
}

// One buffer of resource memory.
struct DeviceBuffer {
  std::shared_ptr<DeviceCommunicator> owner;
  std::size_t index;

  std::size_t nbytes() const { return owner->buffer_sizes()[index]; }
  std::uintptr_t address(int lsa_rank) const {
    return reinterpret_cast<std::uintptr_t>(owner->buffer(index, lsa_rank));
  }
};

std::vector<ncclTeam> teams_from_python(const py::object& teams) {
  if (!py::isinstance<py::iterable>(teams))
    throw_type_error("teams", "Teams of the communicator", teams.ptr());
  std::vector<ncclTeam> values;
  for (const py::handle team : teams) values.push_back(team_from_python("teams", team));
  return values;
}

std::shared_ptr<DeviceCommunicator> create_device_comm(
    const std::shared_ptr<Communicator>& communicator, const ncclDevCommRequirements_t& fields,
    std::vector<std::size_t> buffers, const py::object& teams, int version) {
  const DeviceCommunicator::Request request{version, fields, std::move(buffers),
                                            teams_from_python(teams)};
  auto created = make_warning<DeviceCommunicator>(
      "a pynccl DeviceComm was not closed; it stays until its communicator is closed", communicator,
      request);
  if (Group* group = Group::active()) {
    group->record(created);
    return created;
  }
  const GilReleased released;
  DeviceCommunicator::create({created.get()});
  return created;
}

py::bytes to_bytes(const DeviceCommunicator& d) {
  return {static_cast<const char*>(d.data()), d.nbytes()};
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

}  // namespace

void bind_device_comm(py::module_& m) {
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
  type.def_property_readonly("version", &DeviceCommunicator::version,
                             "The version of the headers that define its layout, as an "
                             "NCCL_VERSION_CODE.")
      .def_property_readonly("closed", &DeviceCommunicator::closed,
                             "Whether it or its communicator is closed.")
      .def_property_readonly("buffers", &buffers_of, "The requested DeviceBuffers, a tuple.")
      .def_property_readonly("multimem_pointers", &multimem_pointers,
                             "The address for multimem instructions of each requested team "
                             "(ncclMultimemHandle_t.mcBasePtr), None if there is none; a tuple.")
      .def("__bytes__", &to_bytes)
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

  m.def("query_properties", &properties, py::arg("communicator"),
        "The result of ncclCommQueryProperties; for pynccl._internal.device_comm.");
  m.def("create_device_comm", &create_device_comm, py::arg("communicator"), py::arg("fields"),
        py::arg("buffers"), py::arg("teams"), py::arg("version"),
        "Create a DeviceComm for kernels compiled with the headers of a version, 0 for the "
        "library's. fields: the requirements, without their lists and header. buffers: the sizes "
        "of the resource memory in bytes. teams: the Teams that need multimem.");
}

}  // namespace pynccl::python
