// A job: a call that blocks until ranks have joined or agreed, such as creating, splitting or
// suspending a communicator.
//
// Several jobs of a group, and those of non-blocking communicators, run in their own threads.
#pragma once

#include <cstddef>
#include <functional>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

struct Job {
  Ref<Communicator> comm;    // the communicator to make; none for a rank that a split leaves out
  Ref<Communicator> parent;  // the communicator it is derived from; equal to comm if a job
                             // changes comm itself
  abi::ncclComm_t* out = nullptr;
  std::shared_ptr<Creation> creation;  // of comm, or of what the others make without this rank
  bool blocking = true;
  bool late = false;               // out is written once the communicator is ready; meanwhile a
                                   // parent that is non-blocking is in progress
  uint32_t sequence_count = 1;     // sequence numbers that it takes of the parent
  uint32_t sequence = 0;           // the first of them
  bool agrees_if_revoked = false;  // takes an agreement number of a revoked parent instead
  uint32_t agreement = 0;          // that number; 0: none
  std::function<void(const Job&)> work;

  bool changes_parent() const { return comm && comm == parent; }

  bool makes_parent_busy() const { return late && !blocking; }

  // Closes the handle of a communicator that cannot be created and sets the caller's variable to
  // null.
  void discard();
};

// Runs jobs. Returns ncclSuccess when all are complete, or ncclInProgress if some continue in the
// background. Throws the first error of the jobs that it waited for.
abi::ncclResult_t run_jobs(Job* jobs, size_t count);

// Counts a job as running on its communicator; abort and destroy wait for it.
class JobGuard {
 public:
  explicit JobGuard(const Ref<Communicator>& comm) : comm_(comm) { comm_->order().begin_running(); }
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;
  ~JobGuard() { comm_->order().end_running(); }

 private:
  const Ref<Communicator> comm_;
};

}  // namespace hostnccl
