// Collective registration of a window.
//
// Each rank publishes its memory; ranks of different processes exchange the files of that memory
// and map them; then all exchange whether they succeeded. So there is a window on all ranks or on
// none, each rank knows the reason, and the communicator stays usable in both cases.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/job.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

// The operation of registration_job.
Task run_registration(Communicator& comm, const Operation& operation);

Job registration_job(abi::ncclWindow_t* out, const Ref<Communicator>& comm, void* buffer,
                     size_t bytes, bool symmetric);

}  // namespace hostnccl
