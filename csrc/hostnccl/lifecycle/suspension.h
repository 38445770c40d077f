// Suspension of a communicator: ncclCommSuspend returns its shared memory to the system, except for
// messages that were sent and not yet received; ncclCommResume makes it usable again.
//
// Both are collective: their jobs end when all ranks have taken part.
// Both are collective: their jobs end when all ranks have taken part.
#pragma once

#include "hostnccl/communicator/job.h"

namespace hostnccl {

Job suspend_job(const Ref<Communicator>& comm);
Job resume_job(const Ref<Communicator>& comm);

}  // namespace hostnccl
