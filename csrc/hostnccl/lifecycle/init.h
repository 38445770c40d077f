// Creation of a communicator from a unique id.
#pragma once

#include "hostnccl/communicator/job.h"

namespace hostnccl {

// The job that creates the communicator whose handle is *out.
Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousKey& key,
             const CommSettings& settings, Rendezvous::Watch watch = {});

}  // namespace hostnccl
