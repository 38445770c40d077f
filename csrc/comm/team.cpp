#include "comm/team.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace pynccl {
namespace {

void check_blocks(const ncclTeam& team, int size) {
  if (size < 1 || team.nRanks % size != 0)
    throw std::invalid_argument("size: " + std::to_string(size) + " does not divide the " +
                                std::to_string(team.nRanks) + " ranks of the team");
}

}  // namespace

std::optional<int> team_rank_of(const ncclTeam& team, const ncclTeam& other, int rank) {
  const long distance = (static_cast<long>(rank) - other.rank) * other.stride;
  if (distance % team.stride != 0) return std::nullopt;
  const long found = team.rank + distance / team.stride;
  if (found < 0 || found >= team.nRanks) return std::nullopt;
  return static_cast<int>(found);
}

ncclTeam inner_team(const ncclTeam& team, int size) {
  check_blocks(team, size);
  return {size, team.rank % size, team.stride};
}

ncclTeam outer_team(const ncclTeam& team, int size) {
  check_blocks(team, size);
  return {team.nRanks / size, team.rank / size, team.stride * size};
}

int team_rank_in_difference(const ncclTeam& team, const ncclTeam& subset, int index) {
  const auto first = team_rank_of(team, subset, 0);
  const auto last = team_rank_of(team, subset, subset.nRanks - 1);
  const bool between = subset.nRanks <= 2 || team_rank_of(team, subset, 1);
  if (!first || !last || !between)
    throw std::invalid_argument("subset: " + text_of(subset) + " is not a part of " +
                                text_of(team));
  const int count = team.nRanks - subset.nRanks;
  if (index < 0 || index >= count)
    throw std::invalid_argument("index: " + std::to_string(index) + " is out of range for " +
                                std::to_string(count) + " ranks");
  // The subset contains every step-th rank from low on, with step - 1 other ranks in between.
  const int low = std::min(*first, *last);
  const int step = subset.nRanks > 1 ? std::abs(*last - *first) / (subset.nRanks - 1) : 1;
  if (index < low) return index;
  const int after = index - low;
  const int passed = step > 1 ? std::min(after / (step - 1), subset.nRanks - 1) : subset.nRanks - 1;
  return index + passed + 1;
}

std::string text_of(const ncclTeam& team) {
  return "Team(nranks=" + std::to_string(team.nRanks) + ", rank=" + std::to_string(team.rank) +
         ", stride=" + std::to_string(team.stride) + ")";
}

}  // namespace pynccl
