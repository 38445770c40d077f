// Making communicators: from a unique id, or by splitting another. Each is a job that blocks until
// its ranks have met; several in a group, or non-blocking ones, have threads of their own.
#pragma once

#include <cstddef>
#include <functional>

#include "hostnccl/communicator.h"

namespace hostnccl {

struct Job {
  Ref<Communicator> comm;    // to be made; none for a rank that a split leaves without one
  Ref<Communicator> parent;  // of a split
  abi::ncclComm_t* out = nullptr;
  bool blocking = true;
  uint32_t ticket = 0;  // for the parent
  std::function<void(const Job&)> work;

  // The communicator will not be: its handle is closed, the caller's variable is null.
  void give_up();
};

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const abi::ncclUniqueId& id,
             const Settings& settings);

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const Settings& settings);

// ncclSuccess when all are done, ncclInProgress when some go on in the background; throws the first
// error of those that it waited for.
abi::ncclResult_t run_jobs(Job* jobs, size_t count);

abi::ncclComm_t handle_of(const Ref<Communicator>& comm);

}  // namespace hostnccl
