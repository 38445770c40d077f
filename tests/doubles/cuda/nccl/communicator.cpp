#include "nccl/communicator.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "nccl/rules.h"

namespace cuda_double {
namespace {

struct Communicators {
  std::mutex mutex;
  std::map<ncclComm_t, CommunicatorRef> open;
};

Communicators& communicators() {
  static Communicators& all = *new Communicators;
  return all;
}

}  // namespace

bool holds(const Rule& rule) {
  const char* text = std::getenv(rule.variable);
  return text && *text ? std::atoi(text) != 0 : rule.otherwise;
}

void Communicator::learn() {
  if (engine == nullptr || nranks != 0) return;
  int count = 0;
  if (nccl().ncclCommCount(engine, &count) != ncclSuccess) return;
  nccl().ncclCommUserRank(engine, &rank);
  nranks = count;
  if (!key.empty() && holds(kWaitForPeers)) peers = std::make_unique<Peers>(key, nranks, rank);
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

bool Communicator::failed() const {
  const ncclResult_t error = state();
  return error != ncclSuccess && error != ncclInProgress;
}

bool Communicator::busy() { return !blocking && (issuing.load() || connects() || makes_child()); }

void Communicator::wait_for_streams() const {
  while (pending.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Communicator::wait_for_graphs() const {
  while (holds(kWaitForGraphs) && graphs.load() > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

ncclResult_t Communicator::unready() {
  if (blocking) return ncclSuccess;
  if (const ncclResult_t error = refused.load(); error != ncclSuccess) return error;
  if (!busy()) return ncclSuccess;
  return kNcclVersion >= 22400 ? ncclInvalidArgument : ncclInvalidUsage;
}

bool Communicator::connects() {
  return called && !blocking && !revoked && peers && !peers->all_called() && holds(kInProgress);
}

bool Communicator::begin_progress(bool messages, bool collectives) {
  learn();
  if (collectives && peers && kNcclVersion >= 22400) {
    peers->call();
    called = true;
  }
  if (blocking || nranks < 2 || !holds(kInProgress)) return false;
  const bool first_messages = messages && !had_messages;
  had_messages = had_messages || messages;
  if (kNcclVersion < 22400 && !first_messages) return false;
  issuing.store(true);
  return true;
}

ncclResult_t Communicator::refuse(ncclResult_t result) {
  if (blocking || result == ncclSuccess || result == ncclInProgress || !holds(kKeepRefusals))
    return result;
  if (kNcclVersion < 22400 && (state() == ncclInProgress || busy())) return ncclInvalidUsage;
  refused.store(result);
  return result;
}

bool Communicator::makes_child() {
  constexpr std::chrono::milliseconds kLater(50);
  const CommunicatorRef made = child.lock();
  if (!made || !holds(kParentLater)) return false;
  ncclResult_t state = ncclInProgress;
  if (made->engine) nccl().ncclCommGetAsyncError(made->engine, &state);
  if (state == ncclInProgress) return true;
  const auto now = std::chrono::steady_clock::now();
  if (child_ready == decltype(child_ready)()) child_ready = now;
  if (now - child_ready < kLater) return true;
  child.reset();
  child_ready = {};
  return false;
}

CommunicatorRef find_communicator(ncclComm_t handle) {
  const std::lock_guard lock(communicators().mutex);
  const auto found = communicators().open.find(handle);
  return found == communicators().open.end() ? nullptr : found->second;
}

void publish(const CommunicatorRef& communicator) {
  const std::lock_guard lock(communicators().mutex);
  communicators().open[communicator->handle()] = communicator;
}

CommunicatorRef withdraw(ncclComm_t handle) {
  const std::lock_guard lock(communicators().mutex);
  const auto found = communicators().open.find(handle);
  if (found == communicators().open.end()) return nullptr;
  CommunicatorRef communicator = std::move(found->second);
  communicators().open.erase(found);
  return communicator;
}

}  // namespace cuda_double
