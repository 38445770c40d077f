#include "hostnccl/communicator/job.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

// Marks a job's communicators as busy, from before the job's thread starts until the job ends.
class RunningJob {
 public:
  explicit RunningJob(const Job& job) {
    if (job.changes_parent()) suspension_.emplace(job.comm, CommState::Activity::Suspension);
    if (job.comm) guard_.emplace(job.comm);
    if (!job.makes_parent_busy()) return;
    parent_guard_.emplace(job.parent);
    child_.emplace(job.parent, CommState::Activity::Child);
  }

 private:
  std::optional<JobGuard> guard_;
  std::optional<JobGuard> parent_guard_;
  std::optional<ActivityGuard> suspension_;  // ends before the guards
  std::optional<ActivityGuard> child_;
};

// Runs a job in this thread and returns its error.
std::optional<Error> run(const Job& job) {
  std::optional<Error> error;
  try {
    job.work(job);
  } catch (...) {
    error = current_error();
    if (job.comm) job.comm->state().fail(*error);
  }
  // As in NCCL, even if it has failed: if the parent is revoked, only the child reports the error.
  if (job.late && job.comm) *job.out = handle_of(job.comm);
  if (error && job.makes_parent_busy()) job.parent->state().refuse(*error);
  return error;
}

// The threads of blocking jobs. While they run, the calling thread checks for interruption.
class JobThreads {
 public:
  void start(const Job& job, std::optional<Error>& error, std::shared_ptr<RunningJob> running) {
    threads_.push_back(make_thread([this, &job, &error, running = std::move(running)]() mutable {
      error = run(job);
      running.reset();
      const std::lock_guard lock(mutex_);
      ++ended_;
      changed_.notify_one();
    }));
  }

  void join(const Job* jobs, size_t count) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kCheckInterval, [&] { return ended_ == threads_.size(); })) {
      lock.unlock();
      for (size_t i = 0; i < count && interrupted(); ++i) {
        if (jobs[i].creation) jobs[i].creation->end(Creation::End::Interrupted);
      }
      lock.lock();
    }
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ended_ = 0;
  std::vector<std::thread> threads_;
};

void take_numbers(Job& job) {
  if (!job.parent || job.sequence_count == 0) return;
  if (job.agrees_if_revoked && job.parent->state().revoked()) {
    job.agreement = job.parent->agreement().take_number();
  } else {
    job.sequence = job.parent->order().take_sequence(job.sequence_count);
  }
}

}  // namespace

void Job::discard() {
  if (out != nullptr) *out = nullptr;
  if (comm && !changes_parent()) handles<Communicator>().close(comm);
}

abi::ncclResult_t run_jobs(Job* jobs, size_t count) {
  abi::ncclResult_t result = abi::ncclSuccess;
  std::vector<std::optional<Error>> errors(count);
  JobThreads threads;
  for (size_t i = 0; i < count; ++i) {
    take_numbers(jobs[i]);
    if (jobs[i].creation) jobs[i].creation->begin();
  }
  for (size_t i = 0; i < count; ++i) {
    try {
      auto running = std::make_shared<RunningJob>(jobs[i]);
      if (!jobs[i].blocking) {
        start_worker([job = jobs[i], running = std::move(running)] { run(job); });
        result = abi::ncclInProgress;
      } else if (count == 1) {
        errors[i] = run(jobs[i]);
      } else {
        threads.start(jobs[i], errors[i], std::move(running));
      }
    } catch (...) {
      errors[i] = current_error();
      // The sequence number of the job stays unused, so no later operation of the parent can run.
      if (jobs[i].parent && jobs[i].sequence_count != 0) jobs[i].parent->state().fail(*errors[i]);
      if (jobs[i].agreement != 0) jobs[i].parent->agreement().give_up(jobs[i].agreement);
    }
  }
  threads.join(jobs, count);
  std::optional<Error> first;
  for (size_t i = 0; i < count; ++i) {
    if (!errors[i]) continue;
    jobs[i].discard();
    if (!first) first = errors[i];
  }
  if (first) throw *first;
  return result;
}

}  // namespace hostnccl
