// The collectives, as tasks: publish, pull, done. Every rank publishes its call; every rank holds
// the others' calls against its own and pulls what it needs. Reductions run over rank 0, 1, 2, ...
// in that order everywhere, so that all ranks and all runs get the same bits.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

Task run_collective(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
