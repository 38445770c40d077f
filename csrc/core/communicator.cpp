#include "core/communicator.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "abi/constants.h"
#include "core/device.h"
#include "core/issue.h"
#include "core/observer.h"
#include "core/window.h"

namespace pynccl {
namespace {

using Clock = std::chrono::steady_clock;

// init_timeout is implemented by NCCL's non-blocking mode plus polling. A user who asked for the
// non-blocking mode polls with ready and wait_ready().
bool needs_polling(const Communicator::Options& options) {
  return options.init_timeout && options.config.blocking != 0;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Library> library, const Options& options)
    : library_(std::move(library)), options_(options), polled_(needs_polling(options)) {
  options_.config = library_->fit(options_.config);
  if (polled_) options_.config.blocking = 0;
}

Communicator::~Communicator() {
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (comm) NCCL_CALL_NOTHROW(*library_, ncclCommAbort, (comm));
}

void Communicator::throw_not_open() const {
  const State state = state_.load();
  throw std::invalid_argument(
      state == State::kPending  ? "communicator: it is still being made; leave the group first"
      : state == State::kMaking ? "communicator: it is still being made; wait until it is ready"
                                : "communicator: it is closed");
}

void Communicator::throw_failed(ncclResult_t result, const char* function, int line) {
  // Loaded here: an abort on another thread frees the handle during the call that it interrupts.
  throw_nccl(*library_, result, function, comm_.load(), rank_, __FILE__, line);
}

void Communicator::begin_init(int nranks, const std::vector<ncclUniqueId>& ids, int rank) {
  const DeviceScope scope(*library_, options_.device);
  rank_ = rank;
  nranks_ = nranks;
  if (ids.size() == 1) {
    const auto init = library_->nccl<&NcclTable::ncclCommInitRankConfig>();
    check(init(created_.get(), nranks, ids[0], rank, &options_.config), creator_, __LINE__);
    return;
  }
  creator_ = "ncclCommInitRankScalable";
  const auto init = library_->nccl<&NcclTable::ncclCommInitRankScalable>();
  std::vector<ncclUniqueId> own(ids);  // not const in nccl.h
  check(init(created_.get(), nranks, rank, static_cast<int>(own.size()), own.data(),
             &options_.config),
        creator_, __LINE__);
}

void Communicator::begin_child(Communicator& parent, const char* creator) {
  creator_ = creator;
  parent_ = parent.shared_from_this();
  std::erase_if(parent.children_, [](const auto& made) { return made.use_count() == 1 && *made; });
  parent.children_.push_back(created_);
}

void Communicator::begin_split(Communicator& parent, int color, int key) {
  const auto split = library_->nccl<&NcclTable::ncclCommSplit>();
  const ncclComm_t comm = parent.handle();
  no_color_ = color == kSplitNoColor;
  begin_child(parent, "ncclCommSplit");
  parent.check(split(comm, color, key, created_.get(), child_config()), creator_, __LINE__);
}

void Communicator::begin_shrink(Communicator& parent, std::vector<int> excluded, int flags) {
  const auto shrink = library_->nccl<&NcclTable::ncclCommShrink>();
  const ncclComm_t comm = parent.handle();
  begin_child(parent, "ncclCommShrink");
  if (flags != 0) parent.revoked_ = true;
  parent.check(shrink(comm, excluded.data(), static_cast<int>(excluded.size()), created_.get(),
                      child_config(), flags),
               creator_, __LINE__);
}

void Communicator::begin_grow(Communicator& parent, int nranks,
                              const std::optional<ncclUniqueId>& id) {
  const auto grow = library_->nccl<&NcclTable::ncclCommGrow>();
  const ncclComm_t comm = parent.handle();
  begin_child(parent, "ncclCommGrow");
  parent.check(grow(comm, nranks, id ? &*id : nullptr, -1, created_.get(), child_config()),
               creator_, __LINE__);
}

void Communicator::begin_join(int nranks, const ncclUniqueId& id, int rank) {
  const DeviceScope scope(*library_, options_.device);
  creator_ = "ncclCommGrow";
  const auto grow = library_->nccl<&NcclTable::ncclCommGrow>();
  rank_ = rank;
  nranks_ = nranks;
  check(grow(nullptr, nranks, &id, rank, created_.get(), &options_.config), creator_, __LINE__);
}

Communicator::Options Communicator::inherited() const {
  Options options;
  options.config.blocking = polled_ ? kUndefInt : options_.config.blocking;
  options.init_timeout = options_.init_timeout;
  options.device = options_.device;
  options.inherits = true;
  return options;
}

void Communicator::finish() {
  if (no_color_) {
    state_.store(State::kClosed, std::memory_order_release);
    parent_->wait_accepted();
    parent_.reset();
    return;
  }
  state_.store(State::kMaking, std::memory_order_release);
  const bool made = take_handle();
  if (polled_) {
    poll(options_.init_timeout, creator_);
  } else if (!made && options_.config.blocking != 0) {
    wait_ready(std::nullopt);  // the parent is non-blocking, this communicator is not
  }
  if (options_.config.blocking != 0 || polled_) read_identity();
}

// Takes over the handle where NCCL has written it.
bool Communicator::take_handle() {
  if (state_.load(std::memory_order_acquire) != State::kMaking) return true;
  const ncclComm_t made = std::atomic_ref(*created_).load(std::memory_order_acquire);
  if (!made) return false;
  comm_.store(made, std::memory_order_release);
  State making = State::kMaking;  // another thread may have aborted meanwhile
  state_.compare_exchange_strong(making, State::kOpen);
  parent_.reset();
  return true;
}

void Communicator::read_identity() {
  const ncclComm_t comm = handle();
  NCCL_CHECK(*library_, comm, rank_, ncclCommUserRank, (comm, &rank_));
  NCCL_CHECK(*library_, comm, rank_, ncclCommCount, (comm, &nranks_));
  NCCL_CHECK(*library_, comm, rank_, ncclCommCuDevice, (comm, &device_));
}

ncclResult_t Communicator::async_error() {
  if (!take_handle()) {
    // A child without a handle: the parent has the state.
    const ncclResult_t state = parent_ ? parent_->async_error() : ncclInternalError;
    if (state != ncclSuccess) return state;
    if (!take_handle()) return ncclInternalError;
  }
  const ncclComm_t comm = handle();
  ncclResult_t state = ncclSuccess;
  NCCL_CHECK(*library_, comm, rank_, ncclCommGetAsyncError, (comm, &state));
  return state;
}

bool Communicator::ready() {
  const ncclResult_t state = async_error();
  if (!succeeded(state))
    throw_nccl(*library_, state, "ncclCommGetAsyncError", comm_.load(), rank_, __FILE__, __LINE__);
  return state == ncclSuccess;
}

void Communicator::wait_ready(std::optional<double> seconds) {
  poll(seconds, "ncclCommGetAsyncError", OnTimeout::kKeep);
}

void Communicator::poll(std::optional<double> seconds, const char* function) {
  poll(seconds, function, OnTimeout::kAbort);
}

void Communicator::poll(std::optional<double> seconds, const char* function, OnTimeout on_timeout) {
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    const ncclResult_t state = async_error();
    const ncclComm_t comm = comm_.load();
    if (state == ncclSuccess) return;
    if (state != ncclInProgress)
      throw_nccl(*library_, state, function, comm, rank_, __FILE__, __LINE__);
    if (seconds && std::chrono::duration<double>(Clock::now() - start).count() >= *seconds) {
      const char* last = library_->nccl<&NcclTable::ncclGetLastError>()(comm);
      char limit[32];
      std::snprintf(limit, sizeof limit, "%g s", *seconds);
      std::string text = std::string(function) + " on rank " + std::to_string(rank_) +
                         " did not complete within " + limit;
      if (last && *last) text += std::string(": ") + last;
      if (on_timeout == OnTimeout::kAbort) abort();
      throw NcclFailure(ncclTimeout, function, rank_, text);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
}

std::vector<std::shared_ptr<Communicator>> Communicator::init_all(std::shared_ptr<Library> library,
                                                                  const std::vector<int>& devices,
                                                                  Factory make) {
  const DeviceScope scope(*library, devices.empty() ? -1 : devices.front());
  std::vector<ncclComm_t> comms(devices.size());
  NCCL_CHECK(*library, nullptr, -1, ncclCommInitAll,
             (comms.data(), static_cast<int>(devices.size()), devices.data()));
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (const ncclComm_t comm : comms) {
    const auto& rank = ranks.emplace_back(make(library, Options{}));
    *rank->created_ = comm;
    rank->finish();
  }
  return ranks;
}

void Communicator::issue(const Operation& operation) { issue(operation.kind, operation); }

// all_to_all, gather and scatter on a library before 2.28: a group of sends and receives.
void Communicator::issue_as_messages(const Operation& o, int nranks) {
  const std::size_t block = o.count * element_size(o.dtype);
  const auto* sends = static_cast<const char*>(o.sendbuff);
  auto* receives = static_cast<char*>(o.recvbuff);
  const bool root = rank_ == o.root_or_peer;
  const auto transfer = [&](OperationKind kind, int peer, const void* send, void* receive) {
    Operation message = o;
    message.kind = kind;
    message.root_or_peer = peer;
    message.sendbuff = send;
    message.recvbuff = receive;
    issue(message);
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
  group.end();
}

void Communicator::finalize() {
  const ncclComm_t comm = handle();
  NCCL_CHECK(*library_, comm, rank_, ncclCommFinalize, (comm));
  if (polled_) poll(options_.init_timeout, "ncclCommFinalize");
}

void Communicator::close() {
  CommunicatorObservers::before_close(*this, false);
  // NCCL destroys a non-blocking communicator only after it is finalized.
  if (polled_ && !revoked_ && state_.load() == State::kOpen) finalize();
  if (state_.exchange(State::kClosed) != State::kOpen) return;
  const ncclComm_t comm = comm_.exchange(nullptr);
  const ncclResult_t result = library_->nccl<&NcclTable::ncclCommDestroy>()(comm);
  if (!succeeded(result))
    throw_nccl(*library_, result, "ncclCommDestroy", nullptr, rank_, __FILE__, __LINE__);
}

void Communicator::abort() {
  CommunicatorObservers::before_close(*this, true);
  state_.store(State::kClosed, std::memory_order_release);
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (!comm) return;
  const ncclResult_t result = library_->nccl<&NcclTable::ncclCommAbort>()(comm);
  if (!succeeded(result))
    throw_nccl(*library_, result, "ncclCommAbort", nullptr, rank_, __FILE__, __LINE__);
}

ncclUniqueId Communicator::get_unique_id() {
  const ncclComm_t comm = handle();
  ncclUniqueId id;
  NCCL_CHECK(*library_, comm, rank_, ncclCommGetUniqueId, (comm, &id));
  return id;
}

void Communicator::revoke() {
  const ncclComm_t comm = handle();
  NCCL_CHECK(*library_, comm, rank_, ncclCommRevoke, (comm, NCCL_REVOKE_DEFAULT));
  revoked_ = true;
  wait_accepted();
}

void Communicator::begin_suspend() {
  const ncclComm_t comm = handle();
  NCCL_CHECK(*library_, comm, rank_, ncclCommSuspend, (comm, NCCL_SUSPEND_MEM));
}

void Communicator::begin_resume() {
  const ncclComm_t comm = handle();
  NCCL_CHECK(*library_, comm, rank_, ncclCommResume, (comm));
}

std::uint64_t Communicator::memory_stat(ncclCommMemStat_t stat) {
  const ncclComm_t comm = handle();
  std::uint64_t value = 0;
  NCCL_CHECK(*library_, comm, rank_, ncclCommMemStats, (comm, stat, &value));
  return value;
}

GroupScope::GroupScope(Library& library) : library_(library) {
  NCCL_CHECK(library, nullptr, -1, ncclGroupStart, ());
}

GroupScope::~GroupScope() {
  if (open_) NCCL_CALL_NOTHROW(library_, ncclGroupEnd, ());
}

void GroupScope::end() {
  open_ = false;
  NCCL_CHECK(library_, nullptr, -1, ncclGroupEnd, ());
}

std::optional<double> GroupScope::end_simulated() {
  open_ = false;
  ncclSimInfo_t info = library_.fit(ncclSimInfo_t());
  NCCL_CHECK(library_, nullptr, -1, ncclGroupSimulateEnd, (&info));
  if (info.estimatedTime == kUndefFloat) return std::nullopt;
  return static_cast<double>(info.estimatedTime) * 1e-6;
}

std::size_t element_size(ncclDataType_t dtype) {
  constexpr unsigned char kSizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[dtype];
}

}  // namespace pynccl
