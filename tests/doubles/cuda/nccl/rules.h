// NCCL's rules that the engine does not have. Each is an environment variable, read at each use: 0
// turns the rule off, 1 on.
#pragma once

namespace cuda_double {

struct Rule {
  const char* variable;
  bool otherwise;  // where the variable is not set
};

// From 2.24 on ncclCommDestroy waits for the local peers, in other processes, that have connected
// to this rank: until they finalize, destroy or abort, or end. After a revocation it does not.
inline constexpr Rule kWaitForPeers{"NCCL_DOUBLE_WAIT_FOR_PEERS", true};
// ncclCommFinalize waits for the graphs that have the communicator's operations; so do
// ncclCommDestroy and ncclCommAbort where neither it nor ncclCommRevoke was called before.
inline constexpr Rule kWaitForGraphs{"NCCL_DOUBLE_WAIT_FOR_GRAPHS", true};
// Otherwise they free at once. A graph that is destroyed after that writes to the freed
// communicator (enqueue.cc:1528): a violation.
inline constexpr Rule kFreeAtOnce{"NCCL_DOUBLE_FREE_AT_ONCE", true};
// From 2.24 on ncclCommDestroy after an asynchronous error returns inside of a group.
inline constexpr Rule kDestroyInGroup{"NCCL_DOUBLE_DESTROY_IN_GROUP", true};
// ncclCommAbort and ncclCommDestroy free the communicator, also under a call of another thread: a
// violation.
inline constexpr Rule kAbortFrees{"NCCL_DOUBLE_ABORT_FREES", true};
// ncclCommRevoke refuses a communicator that was revoked before, whatever is made from it, and one
// that ncclCommFinalize was called for, even if that has not returned.
inline constexpr Rule kRevokeOnce{"NCCL_DOUBLE_REVOKE_ONCE", true};
// ncclCommRevoke waits for NCCL's streams (init.cc:2942), which come after the communicator's
// operations on the user's streams, and so after all work that is queued before these.
inline constexpr Rule kRevokeWaits{"NCCL_DOUBLE_REVOKE_WAITS", true};
// A call that a non-blocking communicator refuses is its error until it is revoked or aborted.
inline constexpr Rule kKeepRefusals{"NCCL_DOUBLE_KEEP_REFUSALS", true};
// From 2.24 on an operation of a non-blocking communicator, or a group of them, is in progress when
// it returns; before that the first group with messages.
inline constexpr Rule kInProgress{"NCCL_DOUBLE_IN_PROGRESS", true};
// The call that makes a child of a non-blocking communicator is under way on the parent for a while
// after the child is ready.
inline constexpr Rule kParentLater{"NCCL_DOUBLE_PARENT_LATER", true};
// The first collective of a communicator, from 2.24 on, and the first message between two ranks in
// each direction connect their ranks: the call, or the end of its group, waits for the calls of the
// others, without limit. A non-blocking communicator is in progress meanwhile.
inline constexpr Rule kConnect{"NCCL_DOUBLE_CONNECT", true};
// A kernel whose peer has died spins until the communicator is aborted, and NCCL does not notice.
inline constexpr Rule kDeadPeersSpin{"NCCL_DOUBLE_DEAD_PEERS_SPIN", true};
// Two ranks on one GPU are refused, unless they have different NCCL_HOSTIDs, or, from 2.30 on,
// NCCL_MULTI_RANK_GPU_ENABLE is set. ncclCommInitAll does not look at the former.
inline constexpr Rule kRefuseSharedGpus{"NCCL_DOUBLE_REFUSE_SHARED_GPUS", true};

// Ranks can map each other's memory. Otherwise one-sided operations are refused.
inline constexpr Rule kOneSided{"NCCL_DOUBLE_ONE_SIDED", true};
// Before 2.31 the first one-sided operation of a communicator waits for all ranks.
inline constexpr Rule kSetUpOneSided{"NCCL_DOUBLE_SET_UP_ONE_SIDED", true};

bool holds(const Rule& rule);

}  // namespace cuda_double
