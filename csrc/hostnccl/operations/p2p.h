// Send and receive, as tasks, over the PairRing from the sender to the receiver. The messages of a
// ring are matched in the order of the calls.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

// alone: no other operation of the group can progress in the meantime.
Task run_send(Communicator& comm, const Operation& operation, bool alone);
Task run_recv(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
