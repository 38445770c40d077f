#include "hostnccl/lifecycle/init.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "common/per_process.h"

namespace hostnccl {
namespace {

// In strict mode: the unique ids with which ranks of this process have created communicators. In
// NCCL a second creation never returns, unless NCCL_COMM_ID gives all creations one id.
class UsedIds {
 public:
  void add(const RendezvousKey& key, int rank) {
    const std::lock_guard lock(mutex_);
    used_.emplace(key, rank);
  }
  void check(const RendezvousKey& key, int rank) {
    if (std::getenv("NCCL_COMM_ID") != nullptr) return;
    const std::lock_guard lock(mutex_);
    if (!used_.contains({key, rank})) return;
    fail(abi::ncclInvalidUsage,
         "commId: rank %d has already created a communicator with it, and NCCL would never return. "
         "Each communicator needs its own id from ncclGetUniqueId",
         rank);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<RendezvousKey, int>> used_;
};

}  // namespace

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousKey& key,
             const CommSettings& settings, Rendezvous::Watch watch) {
  if (settings.strict) common::per_process<UsedIds>().check(key, rank);
  Job job;
  job.creation = std::make_shared<Creation>();
  job.comm = communicators().open(std::make_unique<Communicator>(settings, job.creation));
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [nranks, rank, key, watch = std::move(watch)](const Job& self) {
    self.comm->initialize(nranks, rank, key, watch);
    if (self.comm->settings().strict) common::per_process<UsedIds>().add(key, rank);
  };
  *out = handle_of(job.comm);
  return job;
}

}  // namespace hostnccl
