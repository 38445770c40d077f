// hostCommAgree(): the surviving ranks of a communicator agree on the membership. NCCL has no such
// function: there, a launcher or a store must know.
#include <algorithm>

#include "hostnccl/api/arguments.h"
#include "hostnccl/api/nccl_api.h"

using namespace hostnccl;

// Every surviving rank calls it, after ncclCommRevoke, before it creates another communicator with
// ncclCommShrink or, if no rank is excluded, ncclCommSplit. excluded has room for all ranks; on
// entry it lists the ranks that need not be waited for.
extern "C" [[gnu::visibility("default")]] ncclResult_t hostCommAgree(ncclComm_t comm,
                                                                     double seconds, int* excluded,
                                                                     int* count) {
  return guarded([=] {
    constexpr double kLongest = 1e8;
    const Ref<Communicator> parent = ready_comm(comm);
    non_null(excluded, "excluded");
    if (!(seconds >= 0)) fail(ncclInvalidArgument, "seconds=%g is below 0", seconds);
    if (!parent->state().revoked()) fail(ncclInvalidUsage, "comm must be revoked first");
    const std::vector<int> lost(excluded, excluded + *non_null(count, "count"));
    for (const int rank : lost) check_rank("excluded", rank, parent->nranks());
    const Recovery::Limit limit(std::min(seconds, kLongest));
    Recovery& recovery = parent->recovery();
    const std::vector<int> result = recovery.agree(lost, limit);
    parent->derived_keys().begin_recovery(recovery.number());
    parent->agreement().restart(recovery.number());
    std::copy(result.begin(), result.end(), excluded);
    *count = static_cast<int>(result.size());
    return ncclSuccess;
  });
}
