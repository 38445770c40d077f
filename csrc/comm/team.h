// The arithmetic of teams that nccl_device.h has as inline functions, so that no library exports
// it. A team is ranks at a constant distance, seen from one of them.
#pragma once

#include <optional>
#include <string>

#include "abi/nccl_device_types.h"

namespace pynccl {

using abi::ncclTeam;

// The rank in team of a rank of other; none where it is not a member.
std::optional<int> team_rank_of(const ncclTeam& team, const ncclTeam& other, int rank);

// The ranks of a team in blocks of size: the team of the own block, and that of the ranks at the
// same place of all blocks. Throws std::invalid_argument unless there are whole blocks.
ncclTeam inner_team(const ncclTeam& team, int size);
ncclTeam outer_team(const ncclTeam& team, int size);

// The rank in team of the index-th member that is not in subset. Throws std::invalid_argument where
// subset is not one, or has no such member.
int team_rank_in_difference(const ncclTeam& team, const ncclTeam& subset, int index);

std::string text_of(const ncclTeam& team);

}  // namespace pynccl
