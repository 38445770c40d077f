// The functions of libhostnccl.so that neither NCCL nor CUDA has. exports.map.in lists them.
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "hostnccl/api/nccl_api.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/operations/collective.h"
#include "hostnccl/rendezvous/rendezvous.h"
#include "hostnccl/segment/comm_settings.h"
#include "hostnccl/segment/window.h"
#include "hostnccl/streams/device_error.h"

using namespace hostnccl;

namespace {

constexpr double kMaxSeconds = 1e8;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/// Sets the interrupt check, for bindings of languages like Python whose signal handlers run
/// between two instructions. Waiting threads call it.
/// @param check returns 0 to continue, or another value to end the wait; null disables the check.
void hostSetInterruptCheck(int (*check)()) { interrupt_check = check; }

/// Sets the time limit of the communicators that this thread creates from now on. In NCCL such a
/// call waits without limit. Only that of a non-blocking communicator can be ended, by
/// ncclCommAbort.
/// @param seconds the limit; negative selects HOSTNCCL_INIT_TIMEOUT.
void hostSetInitTimeout(double seconds) {
  Creation::set_limit(seconds < 0
                          ? std::nullopt
                          : std::optional(Creation::Seconds(std::min(seconds, kMaxSeconds))));
}

/// Sets whether strict mode includes strict calls. Off for NCCL's test double, which implements
/// these rules itself, depending on the release.
void hostSetStrictCalls(int on) { strict_calls_enabled = on != 0; }

/// Returns whether this thread's last failed driver call encountered a failure of work on a stream.
/// That failure then counts as reported: work that is enqueued on the stream later does not inherit
/// it.
/// @param text valid until the next failed call of this thread.
/// @param origin the handle of the communicator, or the argument of hostFailFunction().
int hostWorkFailure(ncclResult_t* result, const char** text, const void** origin) {
  const SharedFailure failure = last_work_failure();
  if (failure == nullptr) return 0;
  failure->reported = true;
  *result = failure->error.code();
  *text = failure->error.text().c_str();
  *origin = failure->error.origin();
  return 1;
}

/// Lets the surviving ranks of a communicator agree on the membership, for which NCCL requires a
/// launcher or a store. Every surviving rank calls it after ncclCommRevoke, before it creates
/// another communicator with ncclCommShrink or, if no rank is excluded, ncclCommSplit.
/// @param seconds how long to wait for live ranks.
/// @param excluded the ranks not to wait for, replaced by the agreed ranks; has space for all
/// ranks.
/// @param count the number of ranks in excluded, before and after the call.
ncclResult_t hostCommAgree(ncclComm_t comm, double seconds, int* excluded, int* count) {
  return guarded([=] {
    const Ref<Communicator> parent = ready_comm(comm);
    non_null(excluded, "excluded");
    if (!(seconds >= 0)) fail(ncclInvalidArgument, "seconds=%g is below 0", seconds);
    if (!parent->state().revoked())
      fail(ncclInvalidUsage, "comm is not revoked: call ncclCommRevoke first");
    const std::vector<int> lost(excluded, excluded + *non_null(count, "count"));
    for (const int rank : lost) check_rank("excluded", rank, parent->nranks());
    const Recovery::Limit limit(std::min(seconds, kMaxSeconds));
    Recovery& recovery = parent->recovery();
    const std::vector<int> result = recovery.agree(lost, limit);
    parent->refuse_new_ranks("recovered its communicator");
    parent->derivations().begin_recovery(recovery.number());
    parent->agreement().restart(recovery.number());
    std::copy(result.begin(), result.end(), excluded);
    *count = static_cast<int>(result.size());
  });
}

/// Describes how a collective of several ranks would run if its buffers do not lie in windows. The
/// answer is the same on all ranks. On a busy machine, a root may choose the direct path instead.
/// @param function the nccl.h function, such as "ncclAllReduce".
/// @param block the bytes that a rank contributes, or contributes for each destination.
/// @param direct whether the ranks read each other's buffers, instead of staging the data.
/// @param chunk the bytes of a block that a round moves if it is staged.
/// @param ns how long the staged and the direct path take between two ranks, by the measurements
/// that the thresholds derive from; 0 if unknown.
ncclResult_t hostCommExplain(ncclComm_t comm, const char* function, size_t block, int* direct,
                             size_t* chunk, double* ns) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    const std::string_view name = non_null(function, "function");
    int kind = 0;
    while (kind < int(Kind::Split) && name != traits_of(Kind(kind)).name) ++kind;
    if (kind == int(Kind::Split)) {
      fail(ncclInvalidArgument, "function=\"%s\" is not a collective of nccl.h", function);
    }
    if (owner->nranks() == 1) fail(ncclInvalidUsage, "a single rank has no path to choose");
    Operation operation{Kind(kind), ncclUint8};
    operation.count = block;
    *non_null(direct, "direct") = path_of(*owner, operation) == Path::Direct;
    *non_null(chunk, "chunk") = staged_chunk(operation, owner->nranks());
    const Segment& segment = owner->segment();
    std::optional<PathTimes> times;
    if (const auto measured = segment.measurements(); measured && !segment.within_process()) {
      times = path_times(*measured, pattern_of(operation.kind),
                         contribution_of(operation, owner->nranks()));
    }
    non_null(ns, "ns")[0] = times ? times->staged : 0;
    ns[1] = times && segment.supports_direct() ? times->direct : 0;
  });
}

/// Returns the address of a rank's memory in a window, for loads and stores. The memory of
/// ncclGetPeerDevicePointer does not outlive the window.
/// @param mapping keeps the memory mapped until hostWindowUnmap(), even without the window.
ncclResult_t hostWindowMap(ncclComm_t comm, ncclWindow_t win, int peer, void** address,
                           void** mapping) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    check_rank("peer", peer, owner->nranks());
    const Ref<Window> window = window_of(comm, win, "win");
    non_null(address, "address");
    *non_null(mapping, "mapping") = new Ref<Window>(window);
    *address = window->part(peer).local;
  });
}

void hostWindowUnmap(void* mapping) { delete static_cast<Ref<Window>*>(mapping); }

}  // extern "C"
#pragma GCC visibility pop
