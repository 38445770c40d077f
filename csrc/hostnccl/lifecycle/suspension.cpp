#include "hostnccl/lifecycle/suspension.h"

#include "hostnccl/lifecycle/record_exchange.h"
#include "hostnccl/lifecycle/sequence_guard.h"

namespace hostnccl {
namespace {

// The exchange of records uses the staging buffers, which are released here. After the first
// barrier no rank is in the exchange any more; after the second all memory is released.
void suspend(const Job& job) {
  Communicator& comm = *job.comm;
  exchange_records(job.comm, Kind::Suspend, {}, job.sequence);
  const SequenceGuard guard(comm, job.sequence + 1);
  comm.state().set_suspended(true);
  comm.agreement().suspension_barrier();
  comm.release_memory();
  comm.agreement().suspension_barrier();
}

Job job_on(const Ref<Communicator>& comm) {
  Job job;
  job.comm = comm;
  job.parent = comm;
  job.blocking = comm->settings().blocking;
  return job;
}

}  // namespace

Job suspend_job(const Ref<Communicator>& comm) {
  Job job = job_on(comm);
  job.sequence_count = 2;
  job.work = suspend;
  return job;
}

Job resume_job(const Ref<Communicator>& comm) {
  Job job = job_on(comm);
  job.work = [](const Job& self) {
    exchange_records(self.comm, Kind::Resume, {}, self.sequence);
    self.comm->state().set_suspended(false);
  };
  return job;
}

}  // namespace hostnccl
