// NCCL's rules that the engine does not implement. Each is an environment variable, read at each
// use: 0 disables the rule, 1 enables it.
#pragma once

namespace cuda_double {

struct Rule {
  const char* variable;
  bool otherwise;  // if the variable is not set
};

// From 2.24 on, ncclCommDestroy waits for local peers in other processes that have connected to
// this rank, until they finalize, destroy, abort or end. After a revocation it does not.
inline constexpr Rule kWaitForPeers{"NCCL_DOUBLE_WAIT_FOR_PEERS", true};
// ncclCommFinalize waits for graphs with the communicator's operations. So do ncclCommDestroy and
// ncclCommAbort if neither ncclCommFinalize nor ncclCommRevoke was called before.
inline constexpr Rule kWaitForGraphs{"NCCL_DOUBLE_WAIT_FOR_GRAPHS", true};
// Otherwise they free immediately. A graph destroyed after that writes to the freed communicator
// (enqueue.cc:1528), which is a violation.
inline constexpr Rule kFreeAtOnce{"NCCL_DOUBLE_FREE_AT_ONCE", true};
// From 2.24 on, ncclCommDestroy after an asynchronous error leaves the thread in a group.
inline constexpr Rule kDestroyInGroup{"NCCL_DOUBLE_DESTROY_IN_GROUP", true};
// ncclCommAbort and ncclCommDestroy free the communicator even during a call of another thread,
// which is a violation.
inline constexpr Rule kAbortFrees{"NCCL_DOUBLE_ABORT_FREES", true};
// ncclCommRevoke rejects a communicator that was revoked before, regardless of its children, and
// one for which ncclCommFinalize was called, even if that has not returned.
inline constexpr Rule kRevokeOnce{"NCCL_DOUBLE_REVOKE_ONCE", true};
// ncclCommRevoke waits for NCCL's streams (init.cc:2942), which are ordered after the
// communicator's operations on the user's streams, and so after all work queued before these.
inline constexpr Rule kRevokeWaits{"NCCL_DOUBLE_REVOKE_WAITS", true};
// A call rejected by a non-blocking communicator is its error until it is revoked or aborted.
inline constexpr Rule kKeepRefusals{"NCCL_DOUBLE_KEEP_REFUSALS", true};
// From 2.24 on, an operation of a non-blocking communicator, or a group of operations, is in
// progress when it returns. Earlier, only the first group with messages is.
inline constexpr Rule kInProgress{"NCCL_DOUBLE_IN_PROGRESS", true};
// The call that creates a child of a non-blocking communicator stays in progress on the parent for
// a while after the child is ready.
inline constexpr Rule kParentLater{"NCCL_DOUBLE_PARENT_LATER", true};
// The first collective of a communicator (from 2.24 on) and the first message between two ranks in
// each direction connect their ranks: the call, or the end of its group, waits indefinitely for the
// calls of the others. A non-blocking communicator is in progress meanwhile.
inline constexpr Rule kConnect{"NCCL_DOUBLE_CONNECT", true};
// A kernel whose peer has died spins until the communicator is aborted. NCCL does not detect it.
inline constexpr Rule kDeadPeersSpin{"NCCL_DOUBLE_DEAD_PEERS_SPIN", true};
// Two ranks on one GPU are rejected unless they have different NCCL_HOSTIDs or, from 2.30 on,
// NCCL_MULTI_RANK_GPU_ENABLE is set. ncclCommInitAll ignores NCCL_HOSTID.
inline constexpr Rule kRefuseSharedGpus{"NCCL_DOUBLE_REFUSE_SHARED_GPUS", true};

// Ranks can map each other's memory. Otherwise one-sided operations are rejected.
inline constexpr Rule kOneSided{"NCCL_DOUBLE_ONE_SIDED", true};
// Before 2.31, the first one-sided operation of a communicator waits for all ranks.
inline constexpr Rule kSetUpOneSided{"NCCL_DOUBLE_SET_UP_ONE_SIDED", true};

bool holds(const Rule& rule);

}  // namespace cuda_double
