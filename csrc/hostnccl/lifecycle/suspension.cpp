#include "hostnccl/lifecycle/suspension.h"

#include "hostnccl/lifecycle/record_exchange.h"
#include "hostnccl/lifecycle/sequence_guard.h"

namespace hostnccl {
namespace {

// When all have met, none is in the exchange any more, whose slots are among what goes; and when
// all have met again, all of it is gone.
void suspend(const Job& job) {
  Communicator& comm = *job.comm;
  exchange(job.comm, Kind::Suspend, {}, job.sequence);
  const SequenceGuard turn(comm, job.sequence + 1);
  comm.set_suspended(true);
  comm.suspension_barrier();
  comm.release_memory();
  comm.suspension_barrier();
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
  job.sequences = 2;
  job.work = suspend;
  return job;
}

Job resume_job(const Ref<Communicator>& comm) {
  Job job = job_on(comm);
  job.work = [](const Job& self) {
    exchange(self.comm, Kind::Resume, {}, self.sequence);
    self.comm->set_suspended(false);
  };
  return job;
}

}  // namespace hostnccl
