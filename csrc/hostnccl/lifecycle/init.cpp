#include "hostnccl/lifecycle/init.h"

namespace hostnccl {

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousKey& key,
             const CommSettings& settings, Rendezvous::Watch watch) {
  Job job;
  job.creation = std::make_shared<Creation>();
  job.comm = communicators().open(std::make_unique<Communicator>(settings, job.creation));
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [nranks, rank, key, watch = std::move(watch)](const Job& self) {
    self.comm->initialize(nranks, rank, key, watch);
  };
  *out = handle_of(job.comm);
  return job;
}

}  // namespace hostnccl
