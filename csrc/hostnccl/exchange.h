// An exchange of ballots between all ranks of a communicator, in the order of its operations: an
// all-gather, so that a rank that calls something else meanwhile is told apart.
#pragma once

#include <vector>

#include "hostnccl/communicator.h"

namespace hostnccl {

std::vector<Ballot> exchange(const Ref<Communicator>& comm, Kind kind, const Ballot& own,
                             uint32_t ticket);

}  // namespace hostnccl
