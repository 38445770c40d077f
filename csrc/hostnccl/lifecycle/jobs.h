// The jobs that create communicators: from a unique id, or from another communicator by split,
// shrink and grow. Also the jobs that suspend and resume one.
//
// The ranks of a parent agree on the rendezvous key of the new communicator: by an exchange of
// records, or for shrink by computing the same key without communication.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/communicator/job.h"

namespace hostnccl {

// Creates a communicator from a unique id. Opens its handle and writes it to *out.
Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousKey& key,
             const CommSettings& settings, Rendezvous::Watch watch = {});

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const CommSettings& settings);

// Only the surviving ranks take part. excluded is sorted. With aborts the parent is revoked first.
Job shrink_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, std::vector<int> excluded,
               bool aborts, const CommSettings& settings);

// For the ranks of the parent. Only the root passes an id.
Job grow_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int nranks,
             const std::optional<RendezvousKey>& id, const CommSettings& settings);

// For the ranks that join a grown communicator.
Job join_job(abi::ncclComm_t* out, int nranks, int rank, const UniqueId& id,
             const CommSettings& settings);

// ncclCommSuspend returns the shared memory of a communicator to the system, except for messages in
// transit. ncclCommResume makes it usable again. Both are collective: their jobs end when all ranks
// have taken part.
Job suspend_job(const Ref<Communicator>& comm);
Job resume_job(const Ref<Communicator>& comm);

}  // namespace hostnccl
