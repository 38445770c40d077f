#include "nccl/communicator.h"

#include <algorithm>

#include "driver/handles.h"
#include "driver/settings.h"

namespace cuda_double {
namespace {

Handles<Communicator>& communicators() {
  static auto& all = *new Handles<Communicator>;
  return all;
}

}  // namespace

bool dead_peers_spin() { return setting("NCCL_DOUBLE_DEAD_PEERS_SPIN", 1) != 0; }

bool may_share_gpus() {
  return kNcclVersion >= 23000 && setting("NCCL_MULTI_RANK_GPU_ENABLE") != 0;
}

void Communicator::enter(int size, int own_rank) {
  constexpr int kMostRanks = 1024;
  if (key.empty() || may_share_gpus()) return;
  if (size < 2 || size > kMostRanks || own_rank < 0 || own_rank >= size) return;
  peers = std::make_unique<Peers>(key, size, own_rank);
  peers->place(device);
}

void Communicator::learn() {
  if (engine == nullptr || nranks != 0) return;
  int count = 0;
  if (nccl().ncclCommCount(engine, &count) != ncclSuccess) return;
  nccl().ncclCommUserRank(engine, &rank);
  nranks = count;
  if (!peers && !key.empty()) peers = std::make_unique<Peers>(key, nranks, rank);
  if (peers && !may_share_gpus() && peers->share_gpu()) {
    creation_failed = true;
    refused = ncclInvalidUsage;
    return;
  }
  plugins.open(handle(), nranks, rank, device);
}

void Communicator::connect(int peer) {
  learn();
  if (peers) peers->connect(peer);
}

ncclResult_t Communicator::state() const {
  ncclResult_t error = ncclSuccess;
  if (engine == nullptr || nccl().ncclCommGetAsyncError(engine, &error) != ncclSuccess)
    return ncclSuccess;
  return error;
}

void Communicator::wait_while_in_progress() const {
  wait_while([this] { return state() == ncclInProgress; });
}

bool Communicator::failed() const {
  const ncclResult_t error = state();
  return error != ncclSuccess && error != ncclInProgress;
}

bool Communicator::busy() {
  return !blocking && (issuing.load() || connects() || followed.load() > 0);
}

void Communicator::wait_for_streams() const {
  wait_while([this] { return pending.load() > 0; });
}

void Communicator::wait_for_graphs() const {
  wait_while([this] { return graphs.load() > 0; });
}

ncclResult_t Communicator::unready() {
  if (const ncclResult_t noticed = network.load(); noticed != ncclSuccess) return noticed;
  if (blocking) return ncclSuccess;
  if (const ncclResult_t error = refused.load(); error != ncclSuccess) return error;
  if (!busy()) return ncclSuccess;
  return kNcclVersion >= 22400 ? ncclInvalidArgument : ncclInvalidUsage;
}

void Communicator::begin_collective() {
  learn();
  if (!peers || kNcclVersion < 22400) return;
  peers->call();
  called = true;
}

void Communicator::begin_message(int peer, bool sends) {
  learn();
  if (!peers || peer < 0 || peer >= nranks || peer == rank) return;
  const std::lock_guard lock(mutex);
  const std::pair message(peer, sends);
  if (std::find(begun.begin(), begun.end(), message) != begun.end()) return;
  begun.push_back(message);
  peers->message(peer, sends);
  unanswered.push_back(message);
}

bool Communicator::has_begun(int peer, bool sends) {
  const std::lock_guard lock(mutex);
  return std::find(begun.begin(), begun.end(), std::pair(peer, sends)) != begun.end();
}

bool Communicator::connects() {
  if (revoked || aborted || !peers) return false;
  if (called && !peers->all_called()) return true;
  const std::lock_guard lock(mutex);
  std::erase_if(unanswered, [this](const auto& message) {
    return peers->answered(message.first, message.second);
  });
  return !unanswered.empty();
}

bool Communicator::wait_connected() {
  if (!blocking) return true;
  wait_while([this] { return connects(); });
  return !revoked && !aborted;
}

bool Communicator::begin_progress(bool messages) {
  if (blocking || nranks < 2) return false;
  const bool first_messages = messages && !had_messages;
  had_messages = had_messages || messages;
  if (kNcclVersion < 22400 && !first_messages) return false;
  issuing.store(true);
  return true;
}

ncclResult_t Communicator::refuse(ncclResult_t result) {
  if (blocking || result == ncclSuccess || result == ncclInProgress) return result;
  if (kNcclVersion < 22400 && (state() == ncclInProgress || busy())) return ncclInvalidUsage;
  refused.store(result);
  return result;
}

CommunicatorRef find_communicator(ncclComm_t handle) { return communicators().find(handle); }

void publish(const CommunicatorRef& communicator) { communicators().add(communicator); }

void withdraw(ncclComm_t handle) { communicators().take(handle); }

}  // namespace cuda_double
