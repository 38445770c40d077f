// Communicator::issue(): the call of the nccl.h function for an operation.
#pragma once

#include "core/communicator.h"
#include "core/observer.h"
#include "core/window.h"

namespace pynccl {

[[gnu::always_inline]] inline void Communicator::issue(OperationKind kind, const Operation& o) {
  if (CommunicatorObservers::watched()) [[unlikely]]
    return issue_watched(kind, o);
  const Issuing issuing(*this);
  const ncclComm_t comm = handle();
  Deadlines& deadlines = *deadlines_;
  const std::int64_t now = coarse_time();
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, now, deadlines.limit());
  call_nccl(kind, comm, o);
  deadlines.enqueued(o.stream, now);
}

[[gnu::always_inline]] inline void Communicator::call_nccl(OperationKind kind, ncclComm_t comm,
                                                           const Operation& o) {
  const NcclTable& nccl = library_->nccl_table();
#define CALL(entry, function, ...)                                  \
  check_operation((entry)(__VA_ARGS__, comm, o.stream), #function); \
  return
#define PRESENT(function, ...) CALL(nccl.function, function, __VA_ARGS__)
#define ONE_SIDED(function, ...)                                                                  \
  check_operation(library_->nccl<&NcclTable::function>()(__VA_ARGS__, comm, o.stream), #function, \
                  kOneSidedHint);                                                                 \
  return
  // PRESENT: every library from 2.18 on has the function, or sends and receives replace
  // it. ONE_SIDED: a library without the function is an error.
  switch (kind) {
    case OperationKind::kAllReduce:
      PRESENT(ncclAllReduce, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op);
    case OperationKind::kBroadcast:
      PRESENT(ncclBroadcast, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kReduce:
      PRESENT(ncclReduce, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op, o.root_or_peer);
    case OperationKind::kAllGather:
      PRESENT(ncclAllGather, o.sendbuff, o.recvbuff, o.count, o.dtype);
    case OperationKind::kReduceScatter:
      PRESENT(ncclReduceScatter, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op);
    case OperationKind::kAllToAll:
      if (!nccl.ncclAlltoAll) return issue_as_messages(o, nranks());
      PRESENT(ncclAlltoAll, o.sendbuff, o.recvbuff, o.count, o.dtype);
    case OperationKind::kGather:
      if (!nccl.ncclGather) return issue_as_messages(o, nranks());
      PRESENT(ncclGather, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kScatter:
      if (!nccl.ncclScatter) return issue_as_messages(o, nranks());
      PRESENT(ncclScatter, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kSend:
      PRESENT(ncclSend, o.sendbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kRecv:
      PRESENT(ncclRecv, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kPutSignal:
      o.window->note_put(o.stream);
      ONE_SIDED(ncclPutSignal, o.sendbuff, o.count, o.dtype, o.root_or_peer, o.window->handle(),
                o.offset, o.signal, o.context, 0);
    case OperationKind::kSignal:
      ONE_SIDED(ncclSignal, o.root_or_peer, o.signal, o.context, 0);
    case OperationKind::kWaitSignal:
      ONE_SIDED(ncclWaitSignal, static_cast<int>(o.count),
                static_cast<ncclWaitSignalDesc_t*>(const_cast<void*>(o.sendbuff)));
    default:
      issue_configured(o);
  }
#undef ONE_SIDED
#undef PRESENT
#undef CALL
}

}  // namespace pynccl
