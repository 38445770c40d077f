// The one-sided operations, as tasks.
//
// A put copies into the target's window from the calling thread and then signals a flag that counts
// the signals from this rank to the target. A signal is a put without data. The target takes no
// part until it waits for that flag.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Communicator;

Task run_put(Communicator& comm, const Operation& operation);  // PutSignal and Signal
Task run_wait(Communicator& comm, const Operation& operation);

}  // namespace hostnccl
