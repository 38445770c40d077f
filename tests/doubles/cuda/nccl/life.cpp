// The life of communicators, and memory.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "nccl/calls.h"
#include "nccl/rules.h"

namespace cuda_double {
namespace {

std::string text_of(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[(byte >> 4) & 15];
    text += kDigits[byte & 15];
  }
  return text;
}

bool blocking_of(const ncclConfig_t* config, bool otherwise) {
  if (config == nullptr || config->blocking == kUndefInt) return otherwise;
  return config->blocking != 0;
}

bool before_24() { return kNcclVersion < 22400; }

void wait_while_in_progress(const Communicator& communicator) {
  while (communicator.state() == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The configuration of a child for the engine: the call itself must not block.
const ncclConfig_t* never_blocking(const ncclConfig_t* given, ncclConfig_t& copy) {
  if (given == nullptr || given->blocking != 1) return given;
  std::memcpy(static_cast<void*>(&copy), given, std::min(given->size, sizeof copy));
  copy.size = std::min(given->size, sizeof copy);
  copy.blocking = 0;
  return &copy;
}

// Creates a communicator: call takes where the engine puts its handle. The parent of a split or
// shrink decides whether the call blocks. If it does not, the handle is NULL until the child is
// ready.
template <class EngineCall>
ncclResult_t create(ncclComm_t* out, int device, bool blocking, std::string key, EngineCall&& call,
                    const CommunicatorRef& parent = nullptr, bool later = false) {
  if (out == nullptr) return ncclInvalidArgument;
  Group& group = Group::of_this_thread();
  if (parent && !before_24() && parent->unready() != ncclSuccess) {
    *out = nullptr;
    if (group.depth > 0) Group::fail();
    return parent->unready();
  }
  const bool waits = parent ? parent->blocking : blocking;
  if (const ncclResult_t joined = group.join(waits); joined != ncclSuccess) {
    *out = nullptr;
    return joined;
  }
  const auto untouched = reinterpret_cast<ncclComm_t>(-1);
  const auto made = std::make_shared<Communicator>();
  made->device = device;
  made->blocking = blocking;
  made->key = std::move(key);
  made->engine = untouched;
  publish(made);
  const DeviceScope scope(device);
  ncclResult_t result = call(&made->engine);
  const bool written = made->engine != untouched;
  if (!written) made->engine = nullptr;
  if (result == ncclInvalidArgument) {  // refused at once
    withdraw(made->handle());
    if (written) *out = nullptr;
    return result;
  }
  // A communicator whose initialization has failed is the caller's, to abort.
  *out = later ? nullptr : made->handle();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  group.creations.push_back({out, made, later ? parent : nullptr});
  if (parent && !parent->blocking) parent->child = made;
  if (group.depth > 0) return result;
  group.settle_creations();
  if (later) return ncclSuccess;
  if (result == ncclInProgress && waits) {
    wait_while_in_progress(*made);
    result = made->state();
  }
  return result;
}

std::string derived_key(const CommunicatorRef& parent, const char* how, int number) {
  if (!parent || parent->key.empty()) return {};
  return parent->key + how + std::to_string(parent->derived++) + "." + std::to_string(number);
}

void wait_for_graphs(const Communicator& communicator) {
  while (holds(kWaitForGraphs) && communicator.graphs.load() > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void wait_for_peers(Communicator& communicator) {
  if (!communicator.peers) return;
  communicator.peers->close();
  if (holds(kWaitForPeers)) communicator.peers->wait();
}

}  // namespace

ncclResult_t Call<&Table::ncclGetVersion>::run(const char*, int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = kNcclVersion;
  return ncclSuccess;
}

ncclResult_t Call<&Table::ncclCommInitRank>::run(const char*, ncclComm_t* comm, int nranks,
                                                 ncclUniqueId id, int rank) {
  return create(comm, current_or_first().device(), true, text_of(id),
                [&](ncclComm_t* out) { return nccl().ncclCommInitRank(out, nranks, id, rank); });
}

ncclResult_t Call<&Table::ncclCommInitRankConfig>::run(const char*, ncclComm_t* comm, int nranks,
                                                       ncclUniqueId id, int rank,
                                                       ncclConfig_t* config) {
  return create(comm, current_or_first().device(), blocking_of(config, true), text_of(id),
                [&](ncclComm_t* out) {
                  return nccl().ncclCommInitRankConfig(out, nranks, id, rank, config);
                });
}

ncclResult_t Call<&Table::ncclCommInitRankScalable>::run(const char*, ncclComm_t* comm, int nranks,
                                                         int rank, int count, ncclUniqueId* ids,
                                                         ncclConfig_t* config) {
  const std::string key = ids && count > 0 ? text_of(*ids) : std::string();
  return create(comm, current_or_first().device(), blocking_of(config, true), key,
                [&](ncclComm_t* out) {
                  return nccl().ncclCommInitRankScalable(out, nranks, rank, count, ids, config);
                });
}

ncclResult_t Call<&Table::ncclCommInitAll>::run(const char*, ncclComm_t* comms, int count,
                                                const int* devices) {
  if (comms == nullptr || count < 1) return ncclInvalidArgument;
  for (int i = 0; i < count; ++i) {
    const int device = devices ? devices[i] : i;
    if (device < 0 || device >= device_count())
      return before_24() ? ncclUnhandledCudaError : ncclInvalidArgument;
    for (int j = 0; j < i && devices; ++j)
      if (devices[j] == device && holds(kRefuseSharedGpus) &&
          std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") == nullptr)
        return ncclInvalidUsage;
  }
  current_or_first();
  std::vector<ncclComm_t> made(static_cast<size_t>(count));
  Group& group = Group::of_this_thread();
  if (group.depth > 0) return ncclInvalidUsage;
  const ncclResult_t result = nccl().ncclCommInitAll(made.data(), count, nullptr);
  for (int i = 0; i < count && result == ncclSuccess; ++i) {
    const auto communicator = std::make_shared<Communicator>();
    communicator->engine = made[static_cast<size_t>(i)];
    communicator->device = devices ? devices[i] : i;
    communicator->learn();
    publish(communicator);
    comms[i] = communicator->handle();
  }
  return result;
}

ncclResult_t Call<&Table::ncclCommSplit>::run(const char*, ncclComm_t comm, int color, int key,
                                              ncclComm_t* out, ncclConfig_t* config) {
  const CommunicatorRef parent = find_communicator(comm);
  const CallGuard guard(parent);
  const bool later = parent && !parent->blocking;
  ncclConfig_t copy;
  auto* const engine_config =
      const_cast<ncclConfig_t*>(later ? never_blocking(config, copy) : config);
  return create(
      out, parent ? parent->device : 0, blocking_of(config, !parent || parent->blocking),
      derived_key(parent, ":split", color),
      [&](ncclComm_t* made) {
        return nccl().ncclCommSplit(engine_handle(comm), color, key, made, engine_config);
      },
      parent, later);
}

ncclResult_t Call<&Table::ncclCommShrink>::run(const char*, ncclComm_t comm, int* excluded,
                                               int count, ncclComm_t* out, ncclConfig_t* config,
                                               int flags) {
  const CommunicatorRef parent = find_communicator(comm);
  const CallGuard guard(parent);
  const bool later = parent && !parent->blocking;
  ncclConfig_t copy;
  auto* const engine_config =
      const_cast<ncclConfig_t*>(later ? never_blocking(config, copy) : config);
  return create(
      out, parent ? parent->device : 0, blocking_of(config, !parent || parent->blocking),
      derived_key(parent, ":shrink", count),
      [&](ncclComm_t* made) {
        return nccl().ncclCommShrink(engine_handle(comm), excluded, count, made, engine_config,
                                     flags);
      },
      parent, later);
}

// Its ranks are not followed: those that were there and those that come have no key in common.
ncclResult_t Call<&Table::ncclCommGrow>::run(const char*, ncclComm_t comm, int nranks,
                                             const ncclUniqueId* id, int rank, ncclComm_t* out,
                                             ncclConfig_t* config) {
  const CommunicatorRef parent = find_communicator(comm);
  const CallGuard guard(parent);
  const int device = parent ? parent->device : current_or_first().device();
  return create(
      out, device, blocking_of(config, !parent || parent->blocking), {},
      [&](ncclComm_t* made) {
        return nccl().ncclCommGrow(engine_handle(comm), nranks, id, rank, made, config);
      },
      parent);
}

ncclResult_t Call<&Table::ncclCommFinalize>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommFinalize(comm);
  const CallGuard guard(communicator);
  if (const ncclResult_t refused = communicator->unready(); refused != ncclSuccess) return refused;
  wait_for_graphs(*communicator);
  ncclResult_t result = communicator->refuse(nccl().ncclCommFinalize(communicator->engine));
  if (result == ncclInProgress && communicator->blocking) {  // the engine's does not block
    wait_while_in_progress(*communicator);
    result = communicator->state();
  }
  const bool done = result == ncclSuccess || result == ncclInProgress;
  if (done && communicator->peers) communicator->peers->close();
  return result;
}

ncclResult_t Call<&Table::ncclCommDestroy>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommDestroy(comm);
  ncclResult_t unready = communicator->unready();
  if (unready == ncclSuccess && !communicator->blocking && communicator->state() == ncclInProgress)
    unready = ncclInvalidArgument;
  if (unready == ncclSuccess && !before_24() && communicator->failed())
    unready = communicator->state();
  if (unready != ncclSuccess && kNcclVersion < 23100 && holds(kDestroyInGroup)) {
    if (!before_24()) Call<&Table::ncclGroupStart>::run("ncclGroupStart");
    return before_24() ? ncclInvalidArgument : unready;
  }
  wait_for_graphs(*communicator);
  wait_for_peers(*communicator);
  const ncclResult_t result = nccl().ncclCommDestroy(communicator->engine);
  if (result == ncclSuccess) {
    communicator->aborted.store(true);
    withdraw(comm);
  }
  return result;
}

ncclResult_t Call<&Table::ncclCommAbort>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommAbort(comm);
  if (communicator->calls.load() > 0 && holds(kAbortFrees))
    report_violation("ncclCommAbort frees a communicator that a call of another thread uses");
  const ncclResult_t result = nccl().ncclCommAbort(communicator->engine);
  if (result != ncclSuccess) return result;
  communicator->aborted.store(true);
  while (communicator->followed.load() > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  withdraw(comm);
  wait_for_graphs(*communicator);
  wait_for_peers(*communicator);
  return result;
}

ncclResult_t Call<&Table::ncclCommRevoke>::run(const char*, ncclComm_t comm, int flags) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommRevoke(comm, flags);
  const CallGuard guard(communicator);
  if (communicator->revoked && holds(kRevokeOnce)) return ncclInvalidArgument;
  const ncclResult_t result = nccl().ncclCommRevoke(communicator->engine, flags);
  if (result == ncclSuccess || result == ncclInProgress) {
    communicator->revoked = true;
    communicator->refused.store(ncclSuccess);
  }
  return result;
}

ncclResult_t Call<&Table::ncclCommGetAsyncError>::run(const char*, ncclComm_t comm,
                                                      ncclResult_t* error) {
  const CommunicatorRef communicator = find_communicator(comm);
  const ncclResult_t result = nccl().ncclCommGetAsyncError(engine_handle(comm), error);
  if (!communicator || result != ncclSuccess) return result;
  if (const ncclResult_t kept = communicator->refused.load(); kept != ncclSuccess) {
    *error = kept;
    return ncclSuccess;
  }
  if (*error == ncclSuccess) communicator->learn();
  if (*error == ncclSuccess && communicator->makes_child()) *error = ncclInProgress;
  if (*error == ncclRemoteError && holds(kDeadPeersSpin)) *error = ncclSuccess;
  return result;
}

ncclResult_t Call<&Table::ncclCommCuDevice>::run(const char*, ncclComm_t comm, int* device) {
  const CommunicatorRef communicator = find_communicator(comm);
  const ncclResult_t result = nccl().ncclCommCuDevice(engine_handle(comm), device);
  if (result == ncclSuccess && communicator) *device = communicator->device;
  return result;
}

ncclResult_t Call<&Table::ncclCommQueryProperties>::run(const char*, ncclComm_t comm,
                                                        ncclCommProperties_t* props) {
  const CommunicatorRef communicator = find_communicator(comm);
  const ncclResult_t result = nccl().ncclCommQueryProperties(engine_handle(comm), props);
  if (result == ncclSuccess && communicator) props->cudaDev = communicator->device;
  return result;
}

ncclResult_t Call<&Table::ncclMemAlloc>::run(const char*, void** ptr, size_t size) {
  const int device = current_or_first().device();
  const ncclResult_t result = nccl().ncclMemAlloc(ptr, size);
  if (result != ncclSuccess) return result;
  void* const memory = *ptr;
  add_range(memory, size ? size : 1, device, "ncclMemAlloc",
            [memory] { nccl().ncclMemFree(memory); });
  return ncclSuccess;
}

// Does not wait for what uses the memory.
ncclResult_t Call<&Table::ncclMemFree>::run(const char*, void* ptr) {
  const RangeRef range = ptr ? take_range(ptr) : nullptr;
  if (!range) return nccl().ncclMemFree(ptr);
  free_range(range, "ncclMemFree");
  return ncclSuccess;
}

}  // namespace cuda_double
