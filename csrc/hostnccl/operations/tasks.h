// The operations as tasks, which ProgressEngine runs.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

// A collective. Every rank publishes its call, checks it against the calls of the others, and
// copies or reduces the data that it needs from them. Reductions run over rank 0, 1, 2, ... in this
// order on every rank and path, so all ranks and all runs get the same bits.
Task run_collective(Communicator& comm, const Operation& operation);

// Send and receive, over the PairRing from the sender to the receiver. The messages of a ring are
// matched in the order of the calls. alone: no other operation of the group can progress meanwhile.
Task run_send(Communicator& comm, const Operation& operation, bool alone);
Task run_recv(Communicator& comm, const Operation& operation);

// PutSignal and Signal. A put copies into the target's window from the calling thread, then signals
// a flag that counts the signals from this rank to the target. A signal is a put without data. The
// target takes no part until it waits for that flag.
Task run_put(Communicator& comm, const Operation& operation);
Task run_wait(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
