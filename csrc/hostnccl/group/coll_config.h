// The configuration of one collective call. What steers GPU kernels (CTAs, clusters, their policy)
// is checked as NCCL checks it and has no effect here: a rank is one thread.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/streams/event.h"

namespace hostnccl {

struct CollConfig {
  Path path = Path::Any;
  uint64_t tag = 0;
  Ref<Event> launched;  // recorded when the operation begins; none: nothing is
};

// given may be null, or of an older or newer version of the struct.
CollConfig read_coll_config(const abi::ncclCollConfig_t* given, Kind kind,
                            const Communicator& comm);

}  // namespace hostnccl
