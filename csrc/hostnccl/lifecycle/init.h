// Making communicators from a unique id; and the jobs in which all communicators are made. A job
// blocks until its ranks have met; several in a group, or non-blocking ones, have threads of their
// own.
#pragma once

#include <cstddef>
#include <functional>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

struct Job {
  Ref<Communicator> comm;    // to be made; none for a rank that a split leaves without one
  Ref<Communicator> parent;  // that it is made of; the same as comm where that is changed
  abi::ncclComm_t* out = nullptr;
  bool blocking = true;
  uint32_t sequences = 1;  // for the parent: how many it takes, and the first of them
  uint32_t sequence = 0;
  bool agreements = false;
  uint32_t agreement = 0;  // instead of a sequence, where the parent is revoked
  std::function<void(const Job&)> work;

  bool changes_parent() const { return comm && comm == parent; }

  // The communicator will not be: its handle is closed, the caller's variable is null.
  void give_up();
};

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousName& name,
             const CommSettings& settings, Rendezvous::Watch watch = {});

// ncclSuccess when all are done, ncclInProgress when some go on in the background; throws the first
// error of those that it waited for.
abi::ncclResult_t run_jobs(Job* jobs, size_t count);

abi::ncclComm_t handle_of(const Ref<Communicator>& comm);

}  // namespace hostnccl
