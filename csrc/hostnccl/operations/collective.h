// The collectives, as tasks.
//
// Every rank publishes its call, checks it against the calls of the others and copies or reduces
// the data that it needs from them. Reductions run over rank 0, 1, 2, ... in this order on every
// rank and every path, so all ranks and all runs get the same bits.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

Task run_collective(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
