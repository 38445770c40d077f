// Issuing operations, except for the fast path of issue() in communicator.h and the one-sided
// operations in window.cpp, and the exceptions of a communicator: NCCL's failures, a communicator
// that is not open, and exceeded time limits.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "comm/communicator.h"
#include "comm/failed_streams.h"
#include "comm/observer.h"
#include "nccl/interrupt.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

// Calls visit.operator()<entry>(name, arguments between dtype and comm) for the ...Config function
// of an operation's kind.
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
      throw std::invalid_argument("config: send and recv have no configuration");
  }
#undef ENTRY
}

constexpr double kDumpSeconds = 2;  // how long a later failure waits for the dump of the first

// Whether the result is fatal. The other errors only refuse a call.
bool ends_communicator(ncclResult_t result) {
  return result == ncclUnhandledCudaError || result == ncclSystemError ||
         result == ncclInternalError || result == ncclRemoteError || result == ncclTimeout;
}

// Parses the ranks in a text of hostnccl: "waited for ranks 1 and 3 in ncclAllReduce(...)".
std::optional<MissingRanks> ranks_waited_for(std::string_view text) {
  constexpr std::string_view kBegin = "waited for rank", kEnd = " in ";
  const std::size_t begin = text.find(kBegin);
  if (begin == text.npos) return std::nullopt;
  text.remove_prefix(begin + kBegin.size());
  text = text.substr(0, text.find(kEnd));
  const char* at = text.data();
  const char* const end = at + text.size();
  std::vector<int> ranks;
  while (at != end) {
    int rank = 0;
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error == std::errc()) ranks.push_back(rank);
    at = std::max(next, at + 1);
  }
  return MissingRanks{std::move(ranks), "engine"};
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
  std::unique_ptr<Observation> observed;  // outlives the record's Call
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, event.time, deadlines.limit());
  observed = Observers::called(event);
  call_nccl(kind, comm, o);
  Observers::succeeded(observed);
  deadlines.enqueued(o.stream, event.time);
}

// Meanwhile another thread may revoke or abort the communicator, or the monitor may expire it.
void Communicator::wait_issued(const char* function) {
  const bool interrupted_before = Interrupt::pending();
  poll_until(std::nullopt, [&] {
    if (closed())
      throw annotated(
          NcclFailure(ncclInvalidUsage, function, rank_, "the operation was not issued"));
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

void Communicator::issue_in_group_observed(const Operation& operation) {
  const ncclComm_t comm = handle();
  const OperationEvent event{*this, operation.kind, operation, true, deadlines_->group_began()};
  Observers::before_operation(event);
  const FlightRecorder::Call call(deadlines_->recorder(), operation.kind, operation, event.time,
                                  deadlines_->group_limit());
  const std::unique_ptr<Observation> observed = Observers::called(event);
  call_nccl(operation.kind, comm, operation);
}

void Communicator::simulate_in_group(const Operation& operation) {
  call_nccl(operation.kind, handle(), operation);
}

// Issues all_to_all, gather and scatter as a group of sends and receives, on libraries before 2.28.
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

// Collectives with an ncclCollConfig_t, which need the nccl...Config functions of NCCL 2.31.
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

void Communicator::throw_not_open() const {
  const State state = state_.load();
  if (expired()) throw expiry(state == State::kExpired ? "ncclCommRevoke" : "ncclCommAbort");
  if (state == State::kShrunk)
    throw NcclFailure(ncclInvalidUsage, "ncclCommShrink", rank_,
                      "communicator: shrink(abort=True) has ended its operations; use the new "
                      "communicator (ncclCommShrink)");
  if (state == State::kSuspended)
    throw NcclFailure(ncclInvalidUsage, "ncclCommSuspend", rank_,
                      "communicator: it is suspended; call resume() first");
  throw std::invalid_argument(
      state == State::kPending ? "communicator: it is still being created; leave the group first"
      : state == State::kCreating
          ? "communicator: it is still being created; wait until it is ready"
      : state == State::kUnready
          ? "communicator: a call on it is in progress; call wait_ready() first"
      : borrowed_ ? "communicator: it is closed, or its owner has closed it"
                  : "communicator: it is closed");
}

void Communicator::check_state() {
  constexpr const char* kFunction = "ncclCommGetAsyncError";
  if (expired()) throw expiry(kFunction);
  if (revoked())
    throw NcclFailure(ncclInvalidUsage, kFunction, rank_, "communicator: it was revoked");
  check(read_async_error(), kFunction);
}

void Communicator::throw_failed(ncclResult_t result, const char* function, const char* file,
                                int line, const char* hint) {
  std::string text = failure_text(*library_, result, function, comm_.load(), rank_);
  if (result == ncclInvalidArgument) text += hint;
  const NcclFailure failure = annotated(NcclFailure(result, function, rank_, text));
  throw NcclFailure(failure.code, function, rank_, failure.what() + place_text(file, line),
                    failure.missing);
}

// Handles a result of NCCL other than ncclSuccess.
void Communicator::check_unfinished(ncclResult_t result, const char* function, const char* hint,
                                    std::source_location where) {
  FlightRecorder& recorder = deadlines_->recorder();
  if (succeeded(result)) {
    try {
      return wait_issued(function);
    } catch (const std::exception&) {
      recorder.fail();
      Observers::operation_failed(*this);
      throw;
    }
  }
  const auto record = recorder.read(recorder.last());
  recorder.fail();
  Observers::operation_failed(*this);
  const auto is_float8 = [](ncclDataType_t dtype) {
    return dtype == ncclFloat8e4m3 || dtype == ncclFloat8e5m2;
  };
  if (nranks_ == 1 && record && is_float8(record->dtype) && record->op >= ncclAvg)
    hint = "; NCCL does not scale 8-bit floats (AVG, PRE_MUL_SUM) in a communicator of one rank";
  throw_failed(result, function, where.file_name(), static_cast<int>(where.line()), hint);
}

// Records the first failure only, because later ones follow from it. Other threads wait until the
// dump is written, because the process may exit when they throw.
void Communicator::record_failure(ncclResult_t result, const std::string& text) noexcept {
  if (!ends_communicator(result) || closed()) return;
  if (failure_recorded_.exchange(true)) {
    poll_until(kDumpSeconds, [this] { return failure_dumped_.load(std::memory_order_acquire); });
    return;
  }
  try {
    deadlines_->recorder().set_failure(text);
    Observers::failed(text);
  } catch (const std::exception&) {  // the failure itself matters more
  }
  failure_dumped_.store(true, std::memory_order_release);
}

void Communicator::record_async_failure() noexcept {
  try {
    read_async_error();
  } catch (const std::exception&) {  // the caller throws the failure of the stream
  }
}

// Replaces the failure of queued work by the failure of its communicator.
class Communicator::WorkFailures final : public Observer {
 public:
  void work_failed(const Library& library, const WorkFailure& failure) override {
    const auto communicator =
        find(library, reinterpret_cast<ncclComm_t>(const_cast<void*>(failure.origin)));
    if (!communicator) return;
    communicator->record_failure(failure.code, failure.what());
    if (communicator->expired()) throw communicator->expiry(failure.function, failure.what());
    throw NcclFailure(failure.code, failure.function, communicator->known_rank(), failure.what());
  }
};

void Communicator::observe() { Observers::add(*new WorkFailures); }

// Called before an abort or a revocation: makes waits for the work that it ends without a result
// throw. Waits up to the given seconds for the work to complete. Does nothing if the library tracks
// failed work itself, or if the communicator has expired, which already recorded it.
void Communicator::fail_queued_work(ncclResult_t result, const char* function,
                                    const std::string& reason, double seconds) {
  if (library_->reports_failed_work() || expired() || closed()) return;
  std::vector<Deadlines::Unfinished> unfinished;
  poll_until(seconds, [&] {
    unfinished = this->unfinished();
    return unfinished.empty();
  });
  if (closed()) return;
  const NcclFailure failure(result, function, rank_, "work queued on the stream failed: " + reason);
  const auto throw_failure = [failure](const std::string& cause) {
    if (cause.empty()) throw NcclFailure(failure);
    throw NcclFailure(failure.code, failure.function, failure.rank,
                      failure.what() + (": " + cause));
  };
  for (const Deadlines::Unfinished& one : unfinished)
    FailedStreams::add(one.streams, one.since, throw_failure);
}

NcclFailure Communicator::expiry(const std::string& function, const std::string& nccl) const {
  const std::lock_guard lock(mutex_);
  auto [text, missing] = expiry_;
  if (!nccl.empty()) text += ": " + nccl;
  if (!missing) missing = ranks_waited_for(nccl);
  if (!missing) text += "; the missing ranks are unknown: compare flight_record() of all ranks";
  return NcclFailure(ncclTimeout, function, rank_, text, missing);
}

NcclFailure Communicator::annotated(const NcclFailure& failure) {
  constexpr std::string_view kAborted = "; another thread has aborted the communicator";
  // After a refused argument the communicator has no error that close() could throw.
  if (failed()) error_thrown_ = true;
  if (Interrupt::pending()) end_interrupted();
  const std::string text = failure.what();
  record_failure(failure.code, text);
  if (expired()) {
    error_thrown_ = true;
    if (failure.code == ncclTimeout) return failure;
    return expiry(failure.function, text);
  }
  if (!closed() || text.ends_with(kAborted)) return failure;
  return NcclFailure(failure.code, failure.function, failure.rank, text + std::string(kAborted));
}

void Communicator::throw_late(double seconds, const char* function) const {
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g s", seconds);
  int rank = rank_;
  {
    const std::lock_guard lock(mutex_);
    if (const auto parent = created_from_.lock(); parent && rank < 0) rank = parent->known_rank();
  }
  std::string text = std::string(function) + " on rank " + std::to_string(rank) +
                     " did not complete within " + limit;
  // hostnccl reports what the communicator waits for. NCCL would return the text of an earlier
  // failure, because no call has failed.
  if (library_->reports_failed_work()) {
    const ncclComm_t comm = std::atomic_ref(*created_).load(std::memory_order_acquire);
    const char* last = library_->nccl<&NcclTable::ncclGetLastError>()(comm);
    if (last && *last) text += std::string(": ") + last;
  }
  throw NcclFailure(ncclTimeout, function, rank, text);
}

}  // namespace pynccl
