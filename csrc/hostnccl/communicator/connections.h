// Connections: in NCCL from 2.24 on, the first collective of a communicator connects all ranks, and
// the first message in a direction its two. In strict mode, the call of such an operation of a
// blocking communicator waits for the calls of the other ranks.
#pragma once

#include <vector>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

// Publishes that this rank calls the operation. Returns the waits that connect its ranks, none if
// an earlier operation has connected them.
std::vector<Wait> begin_connecting(const Communicator& comm, const Operation& operation);

// Sleeps until the waits are over, one after the other. An error is an error of the communicator.
void wait_until_connected(Communicator& comm, const std::vector<Wait>& waits);

}  // namespace hostnccl
