// The class Team, and the teams of a communicator.
#include "comm/device_communicator.h"
#include "python/call/gil.h"
#include "python/convert/integer.h"
#include "python/objects/bind.h"
#include "python/objects/team.h"

namespace pynccl::python {
namespace {

Team make_team(const py::object& nranks, const py::object& rank, const py::object& stride) {
  const Team team{{integer_from_python<int>("nranks", nranks.ptr()),
                   integer_from_python<int>("rank", rank.ptr()),
                   integer_from_python<int>("stride", stride.ptr())}};
  if (team.value.nRanks < 1)
    throw py::value_error("nranks: " + std::to_string(team.value.nRanks) + " is below 1");
  if (team.value.rank < 0 || team.value.rank >= team.value.nRanks)
    throw py::value_error("rank: " + std::to_string(team.value.rank) +
                          " is out of range for a team of " + std::to_string(team.value.nRanks) +
                          " ranks");
  if (team.value.stride == 0) throw py::value_error("stride: it is 0");
  return team;
}

int member_from_python(const Team& team, const py::object& value) {
  const int rank = integer_from_python<int>("rank", value.ptr());
  if (rank < 0 || rank >= team.value.nRanks)
    throw py::value_error("rank: " + std::to_string(rank) + " is out of range for " +
                          text_of(team.value));
  return rank;
}

template <TeamKind kind>
Team team_from(Communicator& communicator) {
  communicator.handle();
  const GilReleased released;
  return {team_of(communicator, kind)};
}

int to_world(Communicator& communicator, const Team& team, const py::object& rank) {
  communicator.handle();
  const int world = rank_to_world(communicator, team.value, member_from_python(team, rank));
  if (world < 0 || world >= communicator.nranks())
    throw py::value_error("team: " + text_of(team.value) + " is not a part of the communicator");
  return world;
}

std::optional<int> to_lsa(Communicator& communicator, const Team& team, const py::object& rank) {
  communicator.handle();
  const int lsa = rank_to_lsa(communicator, team.value, member_from_python(team, rank));
  if (lsa < 0 || lsa >= team_of(communicator, TeamKind::kLsa).nRanks) return std::nullopt;
  return lsa;
}

constexpr char kTeamDoc[] =
    R"(Ranks at a constant distance, seen from one of them (ncclTeam_t): a value.

Args:
    nranks: the number of ranks.
    rank: the own rank in the team.
    stride: the distance of two neighbours in ranks of the communicator.

Raises:
    TypeError, ValueError: an invalid argument.)";

}  // namespace

void bind_device_team(py::module_& m) {
  py::class_<Team>(m, "Team", kTeamDoc)
      .def(py::init(&make_team), py::arg("nranks"), py::arg("rank"), py::arg("stride") = 1)
      .def_property_readonly(
          "nranks", [](const Team& t) { return t.value.nRanks; }, "The number of ranks.")
      .def_property_readonly(
          "rank", [](const Team& t) { return t.value.rank; }, "The own rank in the team.")
      .def_property_readonly(
          "stride", [](const Team& t) { return t.value.stride; },
          "The distance of two neighbours in ranks of the communicator.")
      .def(
          "is_member",
          [](const Team& t, const Team& other, const py::object& rank) {
            return team_rank_of(t.value, other.value, member_from_python(other, rank)).has_value();
          },
          py::arg("other"), py::arg("rank"),
          R"(Whether a rank of another team is in this one (ncclTeamRankIsMember).

Args:
    other: a team of the same communicator, seen from the same rank.
    rank: the rank in other.

Raises:
    TypeError, ValueError: an invalid argument.)")
      .def(
          "rank_of",
          [](const Team& t, const Team& other, const py::object& rank) {
            const int member = member_from_python(other, rank);
            const auto found = team_rank_of(t.value, other.value, member);
            if (!found)
              throw py::value_error("rank: " + std::to_string(member) + " of " +
                                    text_of(other.value) + " is not in " + text_of(t.value));
            return *found;
          },
          py::arg("other"), py::arg("rank"),
          R"(The rank in this team of a rank of another one (ncclTeamRankToTeam).

Args:
    other: a team of the same communicator, seen from the same rank.
    rank: the rank in other.

Raises:
    TypeError, ValueError: an invalid argument, or the rank is not in this team.)")
      .def(
          "inner",
          [](const Team& t, const py::object& size) {
            return Team{inner_team(t.value, integer_from_python<int>("size", size.ptr()))};
          },
          py::arg("size"),
          R"(The team of this rank's block, if the ranks are divided into blocks (ncclTeamInnerFactor).

Args:
    size: the ranks of a block; it divides nranks.

Raises:
    TypeError, ValueError: an invalid argument.)")
      .def(
          "outer",
          [](const Team& t, const py::object& size) {
            return Team{outer_team(t.value, integer_from_python<int>("size", size.ptr()))};
          },
          py::arg("size"),
          R"(The team of the ranks at the own place of all blocks (ncclTeamOuterFactor).

Args:
    size: the ranks of a block; it divides nranks.

Raises:
    TypeError, ValueError: an invalid argument.)")
      .def(
          "rank_in_difference",
          [](const Team& t, const Team& subset, const py::object& index) {
            return team_rank_in_difference(t.value, subset.value,
                                           integer_from_python<int>("index", index.ptr()));
          },
          py::arg("subset"), py::arg("index"),
          R"(The index-th rank of this team that is not in a subset (ncclTeamRankInDifference).

Args:
    subset: a team whose ranks are all in this one.
    index: from 0 to the difference of the numbers of ranks, exclusive.

Returns:
    A rank of this team.

Raises:
    TypeError, ValueError: an invalid argument.)")
      .def("__eq__",
           [](const Team& t, const py::object& other) -> py::object {
             if (!py::isinstance<Team>(other))
               return py::reinterpret_borrow<py::object>(Py_NotImplemented);
             return py::bool_(t == py::cast<const Team&>(other));
           })
      .def("__hash__",
           [](const Team& t) {
             return py::hash(py::make_tuple(t.value.nRanks, t.value.rank, t.value.stride));
           })
      .def("__repr__", [](const Team& t) { return text_of(t.value); })
      .def(py::pickle(
          [](const Team& t) {
            return py::make_tuple(t.value.nRanks, t.value.rank, t.value.stride);
          },
          [](const py::tuple& state) { return make_team(state[0], state[1], state[2]); }));

  add_method<Communicator>("team_world", &team_from<TeamKind::kWorld>,
                           R"(The team of all ranks (ncclTeamWorld, NCCL 2.28).

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
  add_method<Communicator>(
      "team_lsa", &team_from<TeamKind::kLsa>,
      R"(The ranks whose memory this one can load from and store to (ncclTeamLsa, NCCL 2.28).

On one machine with NVLink or peer access, and on CPUs, it is all ranks.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.
    NcclError: NCCL failed.)");
  add_method<Communicator>(
      "team_rail", &team_from<TeamKind::kRail>,
      R"(The ranks at this rank's place in all LSA teams (ncclTeamRail, NCCL 2.28).

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.
    NcclError: NCCL failed.)");
  add_method<Communicator>(
      "rank_to_world", &to_world, py::arg("team"), py::arg("rank"),
      R"(The rank in the communicator of a rank of a team (ncclTeamRankToWorld, NCCL 2.28).

Args:
    team: a Team of this communicator.
    rank: a rank of the team.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
  add_method<Communicator>(
      "rank_to_lsa", &to_lsa, py::arg("team"), py::arg("rank"),
      R"(The rank in the LSA team of a rank of a team (ncclTeamRankToLsa, NCCL 2.28).

Args:
    team: a Team of this communicator.
    rank: a rank of the team.

Returns:
    The rank; None if it is not in this rank's LSA team.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.)");
}

}  // namespace pynccl::python
