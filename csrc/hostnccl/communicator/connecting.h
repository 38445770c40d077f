// Strict mode: the call of a first operation of a blocking communicator waits until the other ranks
// have called theirs, as in NCCL from 2.24 on.
#pragma once

#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/communicator/thread_waits.h"

namespace hostnccl {

// Tells the other ranks that this one calls the operation. Returns the waits that connect it, none
// if its ranks are connected.
std::vector<Wait> begin_connecting(Communicator& comm, const Operation& operation);

// Sleeps until the waits are over, one after the other. An error is that of the communicator.
void wait_until_connected(Communicator& comm, const std::vector<Wait>& waits);

}  // namespace hostnccl
