#include "hostnccl/init.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "hostnccl/launch.h"
#include "hostnccl/thread.h"

namespace hostnccl {
namespace {

// What each rank brings to a split. Whoever will be rank 0 of a new world has brought its id.
struct Ballot {
  int32_t color;
  int32_t key;
  MeetingName name;
};

std::vector<Ballot> exchange(const Job& job, const Ballot& own) {
  std::vector<Ballot> all(static_cast<size_t>(job.parent->nranks()));
  Operation gather{Kind::Split, abi::ncclUint8};
  gather.send = &own;
  gather.recv = all.data();
  gather.count = sizeof own;
  Launch launch;
  launch.add(job.parent, gather);
  launch.use_ticket(job.ticket);
  if (const std::optional<Error> error = launch.run()) throw *error;
  return all;
}

void split(const Job& job, int color, int key) {
  Ballot own{color, key, meeting_name(make_unique_id())};
  const std::vector<Ballot> all = exchange(job, own);
  if (!job.comm) return;
  std::vector<int> members;
  for (int rank = 0; rank < job.parent->nranks(); ++rank) {
    if (all[static_cast<size_t>(rank)].color == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&all](int a, int b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  const auto self = std::find(members.begin(), members.end(), job.parent->rank());
  job.comm->initialize(static_cast<int>(members.size()), static_cast<int>(self - members.begin()),
                       all[static_cast<size_t>(members[0])].name);
}

// The communicator of a job counts it as running, so that abort and destroy wait for its end.
class Running {
 public:
  explicit Running(const Job& job) : comm_(job.comm) {
    if (comm_) comm_->begin_job();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (comm_) comm_->end();
  }

 private:
  const Ref<Communicator> comm_;
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
  if (comm) communicators().close(comm);
}

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const abi::ncclUniqueId& id,
             const Settings& settings) {
  const MeetingName name = meeting_name(id);
  Job job;
  job.comm = communicators().open(std::make_unique<Communicator>(settings));
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [nranks, rank, name](const Job& self) { self.comm->initialize(nranks, rank, name); };
  *out = handle_of(job.comm);
  return job;
}

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const Settings& settings) {
  Job job;
  if (color != abi::kSplitNoColor) {
    job.comm = communicators().open(std::make_unique<Communicator>(settings));
  }
  job.parent = parent;
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [color, key](const Job& self) { split(self, color, key); };
  *out = job.comm ? handle_of(job.comm) : nullptr;
  return job;
}

abi::ncclResult_t run_jobs(Job* jobs, size_t count) {
  for (Job* job = jobs; job != jobs + count; ++job) {
    if (job->parent) job->ticket = job->parent->take_ticket();
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
      if (jobs[i].parent) jobs[i].parent->fail(*errors[i]);  // its ticket will not be used
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
