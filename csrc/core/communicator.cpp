#include "core/communicator.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "core/device.h"

namespace pynccl {
namespace {

using Clock = std::chrono::steady_clock;

bool good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// The non-blocking mode is for the library what a deadline is for us; a user who asked for it polls
// alone.
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
  if (comm) NCCL_RECORD(*library_, ncclCommAbort, (comm));
}

void Communicator::throw_not_open() const {
  throw std::invalid_argument(pending()
                                  ? "communicator: it is still being made; leave the group first"
                                  : "communicator: it is closed");
}

void Communicator::check(ncclResult_t result, const char* function, int line) {
  if (good(result)) [[likely]]
    return;
  // An abort from another thread frees the handle under the call that it interrupts.
  throw_nccl(*library_, result, function, comm_.load(), rank_, __FILE__, line);
}

void Communicator::begin_init(int nranks, const ncclUniqueId& id, int rank) {
  const DeviceScope scope(*library_, options_.device);
  const auto init = library_->nccl<&NcclTable::ncclCommInitRankConfig>();
  rank_ = rank;
  nranks_ = nranks;
  check(init(&created_, nranks, id, rank, &options_.config), creator_, __LINE__);
}

void Communicator::begin_split(Communicator& parent, int color, int key) {
  creator_ = "ncclCommSplit";
  const auto split = library_->nccl<&NcclTable::ncclCommSplit>();
  ncclConfig_t* config = options_.inherits ? nullptr : &options_.config;
  parent.check(split(parent.handle(), color, key, &created_, config), creator_, __LINE__);
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
  comm_.store(created_, std::memory_order_release);
  if (!created_) {  // a rank that split() leaves without a communicator
    state_.store(State::kClosed, std::memory_order_release);
    return;
  }
  if (polled_) poll(options_.init_timeout, creator_);
  if (options_.config.blocking != 0 || polled_) read_identity();
  state_.store(State::kOpen, std::memory_order_release);
}

void Communicator::read_identity() {
  const ncclComm_t comm = created_;
  NCCL_CHECK(*library_, comm, rank_, ncclCommUserRank, (comm, &rank_));
  NCCL_CHECK(*library_, comm, rank_, ncclCommCount, (comm, &nranks_));
  NCCL_CHECK(*library_, comm, rank_, ncclCommCuDevice, (comm, &device_));
}

void Communicator::poll(std::optional<double> seconds, const char* function) {
  const ncclComm_t comm = comm_.load();
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(*library_, comm, rank_, ncclCommGetAsyncError, (comm, &state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress)
      throw_nccl(*library_, state, function, comm, rank_, __FILE__, __LINE__);
    if (seconds && std::chrono::duration<double>(Clock::now() - start).count() > *seconds) {
      const char* last = library_->nccl<&NcclTable::ncclGetLastError>()(comm);
      char limit[32];
      std::snprintf(limit, sizeof limit, "%g s", *seconds);
      std::string text = std::string(function) + " on rank " + std::to_string(rank_) +
                         " did not complete within " + limit;
      if (last && *last) text += std::string(": ") + last;
      abort();
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
    rank->created_ = comm;
    rank->finish();
  }
  return ranks;
}

void Communicator::issue(const Operation& o) {
  const ncclComm_t comm = handle();
  const NcclTable& nccl = library_->nccl_table();
  ncclResult_t result = ncclSuccess;
  const char* function = nullptr;
  // Every library from 2.18 on has these; the three newer ones fall back to sends and receives.
  switch (o.kind) {
    case OperationKind::kAllReduce:
      function = "ncclAllReduce";
      result = nccl.ncclAllReduce(o.sendbuff, o.recvbuff, o.count, o.dtype, o.op, comm, o.stream);
      break;
    case OperationKind::kBroadcast:
      function = "ncclBroadcast";
      result = nccl.ncclBroadcast(o.sendbuff, o.recvbuff, o.count, o.dtype, o.peer, comm, o.stream);
      break;
    case OperationKind::kReduce:
      function = "ncclReduce";
      result =
          nccl.ncclReduce(o.sendbuff, o.recvbuff, o.count, o.dtype, o.op, o.peer, comm, o.stream);
      break;
    case OperationKind::kAllGather:
      function = "ncclAllGather";
      result = nccl.ncclAllGather(o.sendbuff, o.recvbuff, o.count, o.dtype, comm, o.stream);
      break;
    case OperationKind::kReduceScatter:
      function = "ncclReduceScatter";
      result =
          nccl.ncclReduceScatter(o.sendbuff, o.recvbuff, o.count, o.dtype, o.op, comm, o.stream);
      break;
    case OperationKind::kAllToAll:
      if (!nccl.ncclAlltoAll) return exchange_blocks(o, nranks());
      function = "ncclAlltoAll";
      result = nccl.ncclAlltoAll(o.sendbuff, o.recvbuff, o.count, o.dtype, comm, o.stream);
      break;
    case OperationKind::kGather:
      if (!nccl.ncclGather) return exchange_blocks(o, nranks());
      function = "ncclGather";
      result = nccl.ncclGather(o.sendbuff, o.recvbuff, o.count, o.dtype, o.peer, comm, o.stream);
      break;
    case OperationKind::kScatter:
      if (!nccl.ncclScatter) return exchange_blocks(o, nranks());
      function = "ncclScatter";
      result = nccl.ncclScatter(o.sendbuff, o.recvbuff, o.count, o.dtype, o.peer, comm, o.stream);
      break;
    case OperationKind::kSend:
      function = "ncclSend";
      result = nccl.ncclSend(o.sendbuff, o.count, o.dtype, o.peer, comm, o.stream);
      break;
    case OperationKind::kRecv:
      function = "ncclRecv";
      result = nccl.ncclRecv(o.recvbuff, o.count, o.dtype, o.peer, comm, o.stream);
      break;
    default:
      return issue_configured(o);
  }
  check(result, function, __LINE__);
}

// all_to_all, gather and scatter on a library before 2.28: a group of the sends and receives that
// they consist of.
void Communicator::exchange_blocks(const Operation& o, int nranks) {
  const std::size_t block = o.count * element_size(o.dtype);
  const auto* sends = static_cast<const char*>(o.sendbuff);
  auto* receives = static_cast<char*>(o.recvbuff);
  const bool root = rank_ == o.peer;
  const auto transfer = [&](OperationKind kind, int peer, const void* send, void* receive) {
    issue({kind, o.dtype, o.op, peer, send, receive, o.count, o.stream});
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
      transfer(OperationKind::kSend, o.peer, sends, nullptr);
      for (int peer = 0; root && peer < nranks; ++peer)
        transfer(OperationKind::kRecv, peer, nullptr,
                 receives + static_cast<std::size_t>(peer) * block);
      break;
    default:  // kScatter
      for (int peer = 0; root && peer < nranks; ++peer)
        transfer(OperationKind::kSend, peer, sends + static_cast<std::size_t>(peer) * block,
                 nullptr);
      transfer(OperationKind::kRecv, o.peer, nullptr, receives);
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
  // NCCL frees a non-blocking communicator only when it is quiescent.
  if (polled_ && state_.load() == State::kOpen) finalize();
  if (state_.exchange(State::kClosed) != State::kOpen) return;
  const ncclComm_t comm = comm_.exchange(nullptr);
  const ncclResult_t result = library_->nccl<&NcclTable::ncclCommDestroy>()(comm);
  if (!good(result))
    throw_nccl(*library_, result, "ncclCommDestroy", nullptr, rank_, __FILE__, __LINE__);
}

void Communicator::abort() {
  state_.store(State::kClosed, std::memory_order_release);
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (!comm) return;
  const ncclResult_t result = library_->nccl<&NcclTable::ncclCommAbort>()(comm);
  if (!good(result))
    throw_nccl(*library_, result, "ncclCommAbort", nullptr, rank_, __FILE__, __LINE__);
}

ncclResult_t Communicator::async_error() const {
  const ncclComm_t comm = handle();
  ncclResult_t state = ncclSuccess;
  NCCL_CHECK(*library_, comm, rank_, ncclCommGetAsyncError, (comm, &state));
  return state;
}

GroupScope::GroupScope(Library& library) : library_(library) {
  NCCL_CHECK(library, nullptr, -1, ncclGroupStart, ());
}

GroupScope::~GroupScope() {
  if (open_) NCCL_RECORD(library_, ncclGroupEnd, ());
}

void GroupScope::end() {
  open_ = false;
  NCCL_CHECK(library_, nullptr, -1, ncclGroupEnd, ());
}

std::optional<double> GroupScope::end_simulated() {
  open_ = false;
  ncclSimInfo_t info;
  NCCL_CHECK(library_, nullptr, -1, ncclGroupSimulateEnd, (&info));
  if (info.estimatedTime == kUndefFloat) return std::nullopt;
  return static_cast<double>(info.estimatedTime) * 1e-6;
}

std::size_t element_size(ncclDataType_t dtype) {
  constexpr unsigned char kSizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[dtype];
}

}  // namespace pynccl
