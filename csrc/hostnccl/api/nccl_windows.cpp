// NCCL's C API: memory, buffer registrations, windows, one-sided operations and user-defined
// reductions.
#include <vector>

#include "abi/constants.h"
#include "hostnccl/api/nccl_api.h"
#include "hostnccl/operations/window_registration.h"
#include "hostnccl/segment/memory.h"

using namespace hostnccl;

namespace {

constexpr int kRestrictions = NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
constexpr int kWindowFlags = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | kRestrictions;

void check_flags(unsigned flags) {
  if (flags != 0) fail(ncclInvalidArgument, "flags=%#x: nccl.h defines no flags", flags);
}

// Returns a one-sided operation without a buffer, with checked arguments.
PendingOperation make_one_sided(Kind kind, int peer, int signal, int context, ncclComm_t handle,
                                cudaStream_t stream) {
  PendingOperation pending{usable_comm(handle), {kind, ncclUint8}, {}, {}, {}};
  const Communicator& comm = *pending.comm;
  check_rank("peer", peer, comm.nranks());
  const SignalRange& range = comm.settings().signals;
  check_rank("sigIdx", signal, static_cast<int>(range.per_context));
  check_rank("ctx", context, static_cast<int>(range.contexts));
  const CommSettings& settings = comm.settings();
  const bool initialized =
      settings.strict ? comm.windows().any_symmetric_ever() : comm.windows().any_ever();
  if (!initialized && !settings.rma_eager_init) {
    fail(ncclInvalidUsage,
         "%s before a %swindow was registered: register one, or set config->rmaEagerInit to 1",
         traits_of(kind).name, settings.strict ? "symmetric " : "");
  }
  pending.operation.root_or_peer = peer;
  pending.operation.signal =
      range.index(static_cast<uint32_t>(signal), static_cast<uint32_t>(context));
  pending.stream = stream_argument(stream);
  return pending;
}

void check_source(const Communicator& comm, const Window& window, const void* source,
                  size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(non_null(source, "localbuff"));
  const bool strict = comm.settings().strict;
  const auto contains_source = [&](const Window& candidate) {
    return (candidate.symmetric() || !strict) &&
           candidate.local_address(comm.rank(), address, bytes) != nullptr;
  };
  if (contains_source(window)) return;
  for (const Ref<Window>& other : comm.windows().open_set()->windows()) {
    if (contains_source(*other)) return;
  }
  fail(ncclInvalidArgument,
       "localbuff=%p with %zu bytes is not within a %swindow of comm: NCCL puts from registered "
       "memory only",
       source, bytes, strict ? "symmetric " : "");
}

PendingOperation make_wait(const ncclWaitSignalDesc_t* signals, int index, ncclComm_t comm,
                           cudaStream_t stream) {
  const ncclWaitSignalDesc_t& signal = signals[index];
  if (signal.opCnt < 1) {
    fail(ncclInvalidArgument, "signalDescs[%d].opCnt=%d is below 1", index, signal.opCnt);
  }
  PendingOperation pending =
      make_one_sided(Kind::WaitSignal, signal.peer, signal.sigIdx, signal.ctx, comm, stream);
  pending.operation.count = static_cast<size_t>(signal.opCnt);
  return pending;
}

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  return guarded([=] { *non_null(ptr, "ptr") = allocate_memory(size); });
}

ncclResult_t ncclMemFree(void* ptr) {
  return guarded([=] {
    if (ptr != nullptr) free_memory(ptr);
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([=] {
    // As in NCCL, in any state: a communicator in progress, finalized, revoked or suspended.
    const Ref<Communicator> owner = open_comm(comm);
    non_null(buff, "buff");
    *non_null(handle, "handle") = owner->registrations().add(buff, size);
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return guarded([=] {
    const Ref<Communicator> owner = open_comm(comm);
    if (handle != nullptr && !owner->registrations().remove(handle)) {
      fail(ncclInvalidUsage, "handle=%p is not a registration of comm (ncclCommRegister)", handle);
    }
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([=] {
    non_null(op, "op");
    const Ref<Communicator> owner = ready_comm(comm);
    non_null(scalar, "scalar");
    check_dtype(datatype);
    Multiplier multiplier;
    if (residence == ncclScalarDevice) {
      multiplier.from = Multiplier::From::Address;
      multiplier.address = scalar;
    } else if (residence == ncclScalarHostImmediate) {
      multiplier.from = Multiplier::From::Value;
      multiplier.value = load_scalar(scalar, datatype);
    } else {
      fail(ncclInvalidArgument, "residence=%u is not one of ncclScalarResidence_t",
           static_cast<unsigned>(residence));
    }
    *op = owner->red_ops().add(multiplier, datatype);
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([=] { ready_comm(comm)->red_ops().remove(op); });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags) {
  return group_guarded([&] {
    *non_null(win, "win") = nullptr;
    const Ref<Communicator> owner = usable_comm(comm);
    non_null(buff, "buff");
    if ((winFlags & ~kWindowFlags) != 0) {
      fail(ncclInvalidArgument, "winFlags=%#x has bits that nccl.h does not define",
           static_cast<unsigned>(winFlags));
    }
    if ((winFlags & NCCL_WIN_COLL_SYMMETRIC) != 0 && (winFlags & kRestrictions) != 0) {
      fail(ncclInvalidArgument,
           "winFlags=%#x: NCCL_WIN_COLL_SYMMETRIC cannot be combined with NCCL_WIN_GIN_ONLY "
           "or NCCL_WIN_CFT_COUNTED",
           static_cast<unsigned>(winFlags));
    }
    const bool symmetric = (winFlags & NCCL_WIN_COLL_SYMMETRIC) != 0;
    const WindowUse use = symmetric ? WindowUse::Symmetric : WindowUse::Plain;
    return Group::current().submit(registration_job(
        owner, [=](const Job& job) { *win = handle_of(register_window(job, buff, size, use)); }));
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    if (win == nullptr) return;
    if (owner->settings().strict && !find_window(win))
      fail(ncclInternalError, "win=%p is not a window", static_cast<void*>(win));
    const Ref<Window> window = window_of(comm, win, "win");
    if (owner->settings().strict && window->has_puts()) {
      fail(ncclInvalidUsage,
           "win=%p: a put into it is not complete, and NCCL unmaps the peers' memory immediately",
           static_cast<void*>(win));
    }
    if (!owner->windows().remove(window)) {
      fail(ncclInvalidArgument, "win=%p was already deregistered", static_cast<void*>(win));
    }
  });
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    *non_null(outUserPtr, "outUserPtr") = window_of(comm, win, "win")->own().local;
  });
}

ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  return group_guarded([&] {
    PendingOperation pending = make_one_sided(Kind::PutSignal, peer, sigIdx, ctx, comm, stream);
    check_flags(flags);
    check_dtype(datatype);
    Operation& put = pending.operation;
    pending.window = window_of(comm, peerWin, "peerWin");
    const Window& window = *pending.window;
    put.dtype = datatype;
    put.count = count;
    if (count == 0 && pending.comm->settings().strict) {
      fail(ncclInvalidArgument,
           "count=0: NCCL rejects an empty put; ncclSignal sends only a signal");
    }
    const size_t capacity = window.part(peer).bytes;
    if (peerWinOffset > capacity || count > (capacity - peerWinOffset) / element_size(datatype)) {
      fail(ncclInvalidArgument,
           "peerWinOffset=%zu with count=%zu x %s does not fit into the window of rank %d, which "
           "has %zu bytes",
           peerWinOffset, count, dtype_name(datatype), peer, capacity);
    }
    if (count != 0) check_source(*pending.comm, window, localbuff, put.block_bytes());
    put.send = localbuff;
    put.recv = window.part(peer).local + peerWinOffset;
    return Group::current().submit(std::move(pending));
  });
}

ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream) {
  return group_guarded([&] {
    PendingOperation pending = make_one_sided(Kind::Signal, peer, sigIdx, ctx, comm, stream);
    check_flags(flags);
    return Group::current().submit(std::move(pending));
  });
}

ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                            cudaStream_t stream) {
  return group_guarded([&] {
    if (nDesc < 0) fail(ncclInvalidArgument, "nDesc=%d is negative", nDesc);
    if (nDesc != 0) non_null(signalDescs, "signalDescs");
    Group& group = Group::current();
    if (nDesc == 1) return group.submit(make_wait(signalDescs, 0, comm, stream));
    if (usable_comm(comm)->settings().strict && nDesc == 0) {
      fail(ncclInvalidArgument, "nDesc=0: NCCL rejects a wait without signals");
    }
    std::vector<PendingOperation> waits;
    waits.reserve(static_cast<size_t>(nDesc));
    for (int i = 0; i < nDesc; ++i) waits.push_back(make_wait(signalDescs, i, comm, stream));
    // A group, because the waits run one after the other in a single progress engine.
    group.start();
    for (PendingOperation& wait : waits) group.submit(std::move(wait));
    return group.end();
  });
}

}  // extern "C"
