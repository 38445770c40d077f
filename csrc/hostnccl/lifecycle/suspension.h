// Suspending a communicator gives its shared memory back to the system, as far as nothing is on its
// way in it; resuming makes it usable again. Both are jobs that end when all ranks have taken part.
#pragma once

#include "hostnccl/lifecycle/init.h"

namespace hostnccl {

Job suspend_job(const Ref<Communicator>& comm);
Job resume_job(const Ref<Communicator>& comm);

}  // namespace hostnccl
