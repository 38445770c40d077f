#include "hostnccl/lifecycle/init.h"

#include <optional>
#include <thread>
#include <vector>

#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

// The communicator of a job counts it as running, so that abort and destroy wait for its end.
class Running {
 public:
  explicit Running(const Job& job) : comm_(job.comm), changes_(job.changes_parent()) {
    if (changes_) comm_->begin_change();
    if (comm_) busy_.emplace(comm_);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (changes_) comm_->end_change();
  }

 private:
  const Ref<Communicator> comm_;
  const bool changes_;
  std::optional<JobGuard> busy_;
};

// A job in this thread; the error it ended with.
std::optional<Error> run(const Job& job) {
  try {
    job.work(job);
    return std::nullopt;
  } catch (...) {
    const Error error = current_error();
    if (job.comm) job.comm->fail(error);
    return error;
  }
}

}  // namespace

abi::ncclComm_t handle_of(const Ref<Communicator>& comm) {
  return reinterpret_cast<abi::ncclComm_t>(comm.slot());
}

void Job::give_up() {
  if (out != nullptr) *out = nullptr;
  if (comm && !changes_parent()) communicators().close(comm);
}

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousName& name,
             const CommSettings& settings, Rendezvous::Watch watch) {
  Job job;
  job.comm = communicators().open(std::make_unique<Communicator>(settings));
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [nranks, rank, name, watch = std::move(watch)](const Job& self) {
    self.comm->initialize(nranks, rank, name, watch);
  };
  *out = handle_of(job.comm);
  return job;
}

abi::ncclResult_t run_jobs(Job* jobs, size_t count) {
  for (Job* job = jobs; job != jobs + count; ++job) {
    if (!job->parent || job->sequences == 0) continue;
    if (job->agreements && job->parent->revoked()) {
      job->agreement = job->parent->next_agreement();
    } else {
      job->sequence = job->parent->take_sequence(job->sequences);
    }
  }
  abi::ncclResult_t result = abi::ncclSuccess;
  std::vector<std::optional<Error>> errors(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    try {
      auto running = std::make_shared<Running>(jobs[i]);
      if (!jobs[i].blocking) {
        start_thread([job = jobs[i], running = std::move(running)] { run(job); });
        result = abi::ncclInProgress;
      } else if (count == 1) {
        errors[i] = run(jobs[i]);
      } else {
        threads.push_back(make_thread([&job = jobs[i], &error = errors[i],
                                       running = std::move(running)] { error = run(job); }));
      }
    } catch (...) {
      errors[i] = current_error();
      if (jobs[i].parent && jobs[i].sequences != 0)
        jobs[i].parent->fail(*errors[i]);  // its sequence will not be used
    }
  }
  for (std::thread& thread : threads) thread.join();
  std::optional<Error> first;
  for (size_t i = 0; i < count; ++i) {
    if (!errors[i]) continue;
    jobs[i].give_up();
    if (!first) first = errors[i];
  }
  if (first) throw *first;
  return result;
}

}  // namespace hostnccl
