// Job: a call that blocks until ranks have joined or agreed, such as the creation, split or
// suspension of a communicator. Several jobs of a group, and those of non-blocking communicators,
// run in threads of their own.
#pragma once

#include <cstddef>
#include <functional>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

struct Job {
  Ref<Communicator> comm;    // to be created. Empty if a split excludes this rank
  Ref<Communicator> parent;  // from which comm is derived, or comm if the job changes comm itself
  abi::ncclComm_t* out = nullptr;
  std::shared_ptr<Creation> creation;  // of comm, or of the other ranks' communicator
  bool blocking = true;
  // out is written once the communicator is ready or has failed. Until then, a non-blocking parent
  // is in progress.
  bool late = false;
  uint32_t sequence_count = 1;     // sequence numbers of the parent that it takes
  uint32_t sequence = 0;           // the first of them
  bool agrees_if_revoked = false;  // takes an agreement number of a revoked parent instead
  uint32_t agreement = 0;          // that number. 0: none
  std::function<void(const Job&)> work;

  bool changes_parent() const { return comm && comm == parent; }
  bool makes_parent_busy() const { return late && !blocking; }

  // Closes the handle of a communicator that cannot be created and writes null to out.
  void discard();
};

// Runs jobs. Returns ncclSuccess when all are complete, or ncclInProgress if some continue in the
// background. Throws the first error of the blocking jobs.
abi::ncclResult_t run_jobs(Job* jobs, size_t count);

// Marks an activity of a communicator.
class ActivityGuard {
 public:
  ActivityGuard(const Ref<Communicator>& comm, CommState::Activity what)
      : comm_(comm), what_(what) {
    comm_->state().begin(what_);
  }
  ActivityGuard(const ActivityGuard&) = delete;
  ActivityGuard& operator=(const ActivityGuard&) = delete;
  ~ActivityGuard() { comm_->state().end(what_); }

 private:
  const Ref<Communicator> comm_;
  const CommState::Activity what_;
};

// Counts a job as running on its communicator. Abort and destroy wait for it.
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
