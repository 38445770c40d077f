// How a communicator issues operations, besides the fast way of core/issue.h.
#include "core/comparison.h"
#include "core/interrupt.h"
#include "core/issue.h"
#include "core/poll.h"
#include "core/trace.h"

namespace pynccl {

void Communicator::before_operation(OperationKind kind, const Operation& operation) {
  CommunicatorObservers::before_operation(shared_from_this(), operation.stream);
  if (check() == 0) return;
  Operation compared = operation;
  compared.kind = kind;
  Comparison::run({{this, &compared}});
}

// issue() while operations are watched.
void Communicator::issue_watched(OperationKind kind, const Operation& o) {
  if (Trace::timed() || CommunicatorObservers::observed()) return issue_observed(kind, o);
  const Issuing issuing(*this);
  const ncclComm_t comm = handle();
  Deadlines& deadlines = *deadlines_;
  const std::int64_t now = coarse_time();
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, now, deadlines.limit());
  Trace::record(*this, kind, o, now);
  call_nccl(kind, comm, o);
  deadlines.enqueued(o.stream, now);
}

void Communicator::issue_observed(OperationKind kind, const Operation& o) {
  const Issuing issuing(*this);
  const ncclComm_t comm = handle();
  if (CommunicatorObservers::observed()) before_operation(kind, o);
  Deadlines& deadlines = *deadlines_;
  const std::int64_t now = Trace::timed() ? precise_time() : coarse_time();
  TraceCall trace(*this, kind, o, now);
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, now, deadlines.limit());
  trace.called(deadlines.recorder());
  if (Trace::recorded()) Trace::record(*this, kind, o, now);
  call_nccl(kind, comm, o);
  trace.succeeded();
  deadlines.enqueued(o.stream, now);
}

// Another thread may revoke or abort the communicator, and the monitor may expire it, meanwhile.
void Communicator::wait_issued(const char* function) {
  const bool interrupted_before = Interrupt::pending();
  poll_until(std::nullopt, [&] {
    if (closed())
      throw noted(NcclFailure(ncclInvalidUsage, function, rank_, "the operation was not issued"));
    if (expired()) throw expiry(function);
    if (!interrupted_before && Interrupt::poll()) end_interrupted();
    if (revoked())
      throw NcclFailure(ncclInvalidUsage, function, rank_, "communicator: it was revoked");
    const ncclResult_t state = read_async_error();
    check(state, function);
    return state == ncclSuccess;
  });
}

void Communicator::issue(const Operation& operation) { issue(operation.kind, operation); }

void Communicator::issue_in_group(const Operation& operation) {
  const ncclComm_t comm = handle();
  if (CommunicatorObservers::observed())
    CommunicatorObservers::before_operation(shared_from_this(), operation.stream);
  const FlightRecorder::Call call(deadlines_->recorder(), operation.kind, operation,
                                  deadlines_->group_began(), deadlines_->group_limit());
  if (Trace::on()) TraceGroup::add(*this, operation);
  call_nccl(operation.kind, comm, operation);
}

void Communicator::simulate_in_group(const Operation& operation) {
  call_nccl(operation.kind, handle(), operation);
}

// all_to_all, gather and scatter on a library before 2.28: a group of sends and receives.
void Communicator::issue_as_messages(const Operation& o, int nranks) {
  const std::size_t block = o.count * element_size(o.dtype);
  const auto* sends = static_cast<const char*>(o.sendbuff);
  auto* receives = static_cast<char*>(o.recvbuff);
  const bool root = rank_ == o.root_or_peer;
  const Use comm(*this);
  const auto transfer = [&](OperationKind kind, int peer, const void* send, void* receive) {
    Operation message = o;
    message.kind = kind;
    message.root_or_peer = peer;
    message.sendbuff = send;
    message.recvbuff = receive;
    call_nccl(kind, comm, message);
  };
  GroupScope group(*library_);
  switch (o.kind) {
    case OperationKind::kAllToAll:
      for (int peer = 0; peer < nranks; ++peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * block;
        transfer(OperationKind::kSend, peer, sends + offset, nullptr);
        transfer(OperationKind::kRecv, peer, nullptr, receives + offset);
      }
      break;
    case OperationKind::kGather:
      transfer(OperationKind::kSend, o.root_or_peer, sends, nullptr);
      for (int peer = 0; root && peer < nranks; ++peer)
        transfer(OperationKind::kRecv, peer, nullptr,
                 receives + static_cast<std::size_t>(peer) * block);
      break;
    default:  // kScatter
      for (int peer = 0; root && peer < nranks; ++peer)
        transfer(OperationKind::kSend, peer, sends + static_cast<std::size_t>(peer) * block,
                 nullptr);
      transfer(OperationKind::kRecv, o.root_or_peer, nullptr, receives);
      break;
  }
  if (group.end()) wait_issued("ncclGroupEnd");
}

}  // namespace pynccl
