// How a communicator issues operations, besides the fast path of issue(), which communicator.h has.
#include "comm/communicator.h"
#include "nccl/interrupt.h"
#include "nccl/poll.h"

namespace pynccl {
namespace {

// Calls visit.operator()<entry>(name, arguments between dtype and comm) for the function of an
// operation's kind.
template <class Visit>
void visit_entry(const Operation& o, Visit&& visit) {
#define ENTRY(name, ...) \
  visit.template operator()<&NcclTable::name>(#name __VA_OPT__(, ) __VA_ARGS__)
  switch (plain(o.kind)) {
    case OperationKind::kAllReduce:
      return ENTRY(ncclAllReduceConfig, o.op);
    case OperationKind::kBroadcast:
      return ENTRY(ncclBroadcastConfig, o.root_or_peer);
    case OperationKind::kReduce:
      return ENTRY(ncclReduceConfig, o.op, o.root_or_peer);
    case OperationKind::kAllGather:
      return ENTRY(ncclAllGatherConfig);
    case OperationKind::kReduceScatter:
      return ENTRY(ncclReduceScatterConfig, o.op);
    case OperationKind::kAllToAll:
      return ENTRY(ncclAlltoAllConfig);
    case OperationKind::kGather:
      return ENTRY(ncclGatherConfig, o.root_or_peer);
    case OperationKind::kScatter:
      return ENTRY(ncclScatterConfig, o.root_or_peer);
    default:
      throw std::invalid_argument("config: send and recv take none");
  }
#undef ENTRY
}

}  // namespace

// issue() while operations are observed.
void Communicator::issue_observed(OperationKind kind, const Operation& o) {
  const Issuing issuing(*this);
  const ncclComm_t comm = handle();
  OperationEvent event{*this, kind, o, false};
  Observers::before_operation(event);
  Deadlines& deadlines = *deadlines_;
  event.time = Observers::times() ? precise_time() : coarse_time();
  std::unique_ptr<Observation> observed;  // until the record says that the call has returned
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, event.time, deadlines.limit());
  observed = Observers::called(event);
  call_nccl(kind, comm, o);
  Observers::succeeded(observed);
  deadlines.enqueued(o.stream, event.time);
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
  if (Observers::operations()) [[unlikely]]
    return issue_in_group_observed(operation);
  const ncclComm_t comm = handle();
  const FlightRecorder::Call call(deadlines_->recorder(), operation.kind, operation,
                                  deadlines_->group_began(), deadlines_->group_limit());
  call_nccl(operation.kind, comm, operation);
}

// What is observed of the call ends with that of the group.
void Communicator::issue_in_group_observed(const Operation& operation) {
  const ncclComm_t comm = handle();
  const OperationEvent event{*this, operation.kind, operation, true, deadlines_->group_began()};
  Observers::before_operation(event);
  const FlightRecorder::Call call(deadlines_->recorder(), operation.kind, operation, event.time,
                                  deadlines_->group_limit());
  static_cast<void>(Observers::called(event));
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

// A collective with a ncclCollConfig_t: the nccl...Config functions, NCCL 2.31 and newer.
void Communicator::check_configured(const Operation& o) const {
  visit_entry(o, [this]<auto Entry>(const char*, auto...) { library_->nccl<Entry>(); });
  library_->fit(*o.config);
}

void Communicator::issue_configured(const Operation& o) {
  const ncclComm_t comm = handle();
  const ncclCollConfig_t config = library_->fit(*o.config);
  visit_entry(o, [&]<auto Entry>(const char* name, auto... between) {
    const auto function = library_->nccl<Entry>();
    check_operation(
        function(o.sendbuff, o.recvbuff, o.count, o.dtype, between..., comm, o.stream, &config),
        name);
  });
}

}  // namespace pynccl
