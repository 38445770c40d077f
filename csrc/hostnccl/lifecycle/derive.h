// Making communicators of another: by splitting, shrinking or growing it. Its ranks agree, in its
// own memory or without a word, under which name those of a new one meet.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/lifecycle/init.h"

namespace hostnccl {

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const CommSettings& settings);

// Only the ranks that are not excluded take part. With aborts the parent is revoked first.
Job shrink_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, std::vector<int> excluded,
               bool aborts, const CommSettings& settings);

// For the ranks that are there; id: of the root only.
Job grow_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int nranks,
             const std::optional<RendezvousName>& id, const CommSettings& settings);

// For the ranks that come.
Job join_job(abi::ncclComm_t* out, int nranks, int rank, const UniqueId& id,
             const CommSettings& settings);

}  // namespace hostnccl
