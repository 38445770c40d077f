// Send and receive, as tasks, over the channel from the sender to the receiver. The messages of a
// channel are matched in order.
#pragma once

#include "hostnccl/operation.h"
#include "hostnccl/task.h"

namespace hostnccl {

class Communicator;

Task run_send(Communicator& comm, const Operation& operation);
Task run_recv(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
