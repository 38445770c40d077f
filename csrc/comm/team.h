// Team arithmetic. In nccl_device.h these are inline functions, which no library exports. A team is
// a set of ranks at a constant stride, as seen from one of them.
#pragma once

#include <optional>
#include <string>

#include "abi/nccl_device_types.h"

namespace pynccl {

using abi::ncclTeam;

// The rank in team of a rank of other; none if it is not a member.
std::optional<int> team_rank_of(const ncclTeam& team, const ncclTeam& other, int rank);

// Divide a team into blocks of size ranks: the team of this rank's block, and the team of the ranks
// at the same position in all blocks. Throw std::invalid_argument unless size divides the team.
ncclTeam inner_team(const ncclTeam& team, int size);
ncclTeam outer_team(const ncclTeam& team, int size);

// The rank in team of the index-th member that is not in subset. Throws std::invalid_argument if
// subset is not a subset of team, or there is no such member.
int team_rank_in_difference(const ncclTeam& team, const ncclTeam& subset, int index);

std::string text_of(const ncclTeam& team);

}  // namespace pynccl
