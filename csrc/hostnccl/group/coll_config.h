// The per-call configuration of a collective (ncclCollConfig_t). Options for GPU kernels (CTAs,
// clusters, CTA policy) are checked as in NCCL and have no effect: a rank is one thread.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/streams/event.h"

namespace hostnccl {

struct CollConfig {
  Path path = Path::Any;
  uint64_t tag = 0;         // userProfilerTag
  Ref<Event> launch_event;  // launchCompletionEvent: recorded when the operation begins
};

// Checks the struct; null gives the defaults. It may come from an older or newer NCCL: its size
// field determines the version.
CollConfig read_coll_config(const abi::ncclCollConfig_t* given, Kind kind,
                            const Communicator& comm);

}  // namespace hostnccl
