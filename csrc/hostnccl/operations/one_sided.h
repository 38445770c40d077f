// One-sided operations, as tasks. A put writes into the target's memory by the hand of its caller;
// then, as a signal alone does, it raises a word that counts the signals from this rank to the
// target. The target takes no part until it waits for that word.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

Task run_put(Communicator& comm, const Operation& operation);  // and a signal: a put of nothing
Task run_wait(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
