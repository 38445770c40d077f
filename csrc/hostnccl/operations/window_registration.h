// Registering a window, which all ranks do together: each says what it brings, they hand each other
// the files of that memory, map them, and tell each other whether they could. So there is a window
// on all ranks or on none, and each knows why; the communicator goes on in either case.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/lifecycle/init.h"

namespace hostnccl {

Task run_registration(Communicator& comm, const Operation& operation);

Job registration_job(abi::ncclWindow_t* out, const Ref<Communicator>& comm, void* buffer,
                     size_t bytes);

}  // namespace hostnccl
