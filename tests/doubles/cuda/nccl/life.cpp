// Creation and destruction of communicators, and memory.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "driver/settings.h"
#include "nccl/calls.h"

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

bool before_24() { return kNcclVersion < 22400; }

// A configuration as this version reads it, reduced to the fields it knows, for the engine.
class CreationConfig {
 public:
  explicit CreationConfig(const ncclConfig_t* given) {
    constexpr size_t kHeader = offsetof(ncclConfig_t, blocking);
    // 2.18 treats a configuration that is too small as the default.
    if (given == nullptr || (before_24() && given->size < kHeader)) return;
    given_ = true;
    size_t known = kHeader;
#define FIELD(since, type, name, ...) \
  if (since <= kNcclVersion) known = offsetof(ncclConfig_t, name) + sizeof(type);
#include "abi/config_fields.inc"
#undef FIELD
    config_.size = given->size;
    if (config_.size >= kHeader)
      std::memcpy(static_cast<void*>(&config_), given, std::min(given->size, known));
    if (config_.size > known) config_.size = known;
    const char* environment = std::getenv("NCCL_COMM_BLOCKING");
    const std::string_view blocking = environment ? environment : "";
    if ((blocking == "0" || blocking == "1") && config_.size >= kHeader + sizeof(int))
      config_.blocking = blocking == "1";
  }
  // The engine checks the others.
  bool valid() const {
    constexpr int kMostPolicies = 22900;
    return kNcclVersion >= kMostPolicies || config_.CTAPolicy != 3;
  }
  bool blocking(bool otherwise) const {
    if (!given_ || config_.blocking == kUndefInt) return otherwise;
    return config_.blocking != 0;
  }
  ncclConfig_t* get() { return given_ ? &config_ : nullptr; }
  // For a child: if the parent is non-blocking, the call itself must not block.
  ncclConfig_t* for_child(bool later) {
    if (later && given_ && config_.blocking == 1) config_.blocking = 0;
    return get();
  }

 private:
  bool given_ = false;
  ncclConfig_t config_;
};

ncclResult_t refuse_child(ncclComm_t* out) {
  if (out != nullptr) *out = nullptr;
  return ncclInvalidArgument;
}

// Creates a communicator. call receives the pointer to the engine's handle. The parent of a split
// or shrink decides whether the call blocks. If it does not, the handle is NULL until the child is
// ready.
template <class EngineCall>
ncclResult_t create(ncclComm_t* out, int device, bool blocking, std::string key, EngineCall&& call,
                    const CommunicatorRef& parent = nullptr, bool later = false, int nranks = 0,
                    int rank = -1) {
  if (out == nullptr) return ncclInvalidArgument;
  Group& group = Group::of_this_thread();
  if (parent && !before_24() && parent->unready() != ncclSuccess) {
    if (kNcclVersion < 22800) *out = nullptr;
    if (group.depth > 0) Group::fail();
    return parent->unready();
  }
  if (parent && !parent->blocking && kNcclVersion < 22800 && parent->state() == ncclInProgress) {
    *out = nullptr;
    return parent->refuse(ncclInvalidArgument);
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
  made->enter(nranks, rank);
  made->engine = untouched;
  publish(made);
  const DeviceScope scope(device);
  ncclResult_t result = call(&made->engine);
  const bool written = made->engine != untouched;
  if (!written) made->engine = nullptr;
  if (result == ncclInvalidArgument) {  // rejected immediately
    withdraw(made->handle());
    if (written) *out = nullptr;
    return result;
  }
  // The caller must abort a communicator whose initialization has failed.
  *out = later ? nullptr : made->handle();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  group.creations.push_back({out, made, later ? parent : nullptr, parent != nullptr});
  if (later) parent->followed.fetch_add(1);
  if (group.depth > 0) return result;
  if (group.settle_creations() != ncclSuccess) {
    nccl().ncclCommAbort(made->engine);
    withdraw(made->handle());
    *out = nullptr;
    return ncclInvalidUsage;
  }
  if (!parent && !blocking) group.created = made;
  if (later) return ncclSuccess;
  if (result == ncclInProgress && waits) {
    made->wait_while_in_progress();
    result = made->state();
  }
  return result;
}

// Creates a communicator from an ID.
template <class EngineCall>
ncclResult_t create_first(ncclComm_t* out, int nranks, const ncclUniqueId* id, int rank,
                          const ncclConfig_t* config, EngineCall&& call) {
  const ncclConfig_t defaults{};  // which the environment overrides as well
  CreationConfig own(config ? config : &defaults);
  if (!own.valid()) return ncclInvalidArgument;
  return create(
      out, current_or_first().device(), own.blocking(true), id ? text_of(*id) : std::string(),
      [&](ncclComm_t* made) { return call(made, own.get()); }, nullptr, false, nranks, rank);
}

std::string derived_key(const CommunicatorRef& parent, const char* how, int number) {
  if (!parent || parent->key.empty()) return {};
  return parent->key + how + std::to_string(parent->derived++) + "." + std::to_string(number);
}

// Splits or shrinks a communicator. The ranks with the same number are those of one child.
template <class EngineCall>
ncclResult_t create_child(ncclComm_t comm, ncclComm_t* out, const ncclConfig_t* config,
                          const char* how, int number, EngineCall&& call) {
  const CommunicatorRef parent = find_communicator(comm);
  const CallGuard guard(parent);
  const bool later = parent && !parent->blocking;
  CreationConfig own(config);
  if (!own.valid()) return refuse_child(out);
  return create(
      out, parent ? parent->device : 0, own.blocking(!parent || parent->blocking),
      derived_key(parent, how, number),
      [&](ncclComm_t* made) { return call(made, own.for_child(later)); }, parent, later);
}

// From 2.24 on, ncclCommDestroy waits for local peers in other processes that have connected to
// this rank, until they finalize, destroy, abort or end. After a revocation it does not.
void wait_for_peers(Communicator& communicator) {
  if (!communicator.peers) return;
  communicator.peers->close();
  if (!before_24() && !communicator.revoked) communicator.peers->wait();
}

// Without finalize, destroy and abort wait like finalize (NCCL 2.30.7, init.cc:2849).
void finalize_before_free(Communicator& communicator) {
  if (!communicator.finalized) {
    communicator.wait_for_streams();
    communicator.wait_for_graphs();
  }
  communicator.plugins.close();
}

}  // namespace

ncclResult_t Call<&Table::ncclGetVersion>::run(const char*, int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = kNcclVersion;
  return ncclSuccess;
}

const char* Call<&Table::ncclGetErrorString>::run(const char*, ncclResult_t result) {
  if (kNcclVersion < 23000 && result == ncclTimeout) result = ncclNumResults;
  return nccl().ncclGetErrorString(result);
}

ncclResult_t Call<&Table::ncclCommInitRank>::run(const char*, ncclComm_t* comm, int nranks,
                                                 ncclUniqueId id, int rank) {
  if (comm != nullptr && nranks < 1 && before_24()) *comm = nullptr;
  const ncclResult_t result =
      Call<&Table::ncclCommInitRankConfig>::run("", comm, nranks, id, rank, nullptr);
  if (result != ncclInProgress) return result;
  // The call waits even if the environment makes the communicator non-blocking.
  const CommunicatorRef made = find_communicator(*comm);
  made->wait_while_in_progress();
  return made->state();
}

ncclResult_t Call<&Table::ncclCommInitRankConfig>::run(const char*, ncclComm_t* comm, int nranks,
                                                       ncclUniqueId id, int rank,
                                                       ncclConfig_t* config) {
  return create_first(comm, nranks, &id, rank, config, [&](ncclComm_t* out, ncclConfig_t* own) {
    return nccl().ncclCommInitRankConfig(out, nranks, id, rank, own);
  });
}

ncclResult_t Call<&Table::ncclCommInitRankScalable>::run(const char*, ncclComm_t* comm, int nranks,
                                                         int rank, int count, ncclUniqueId* ids,
                                                         ncclConfig_t* config) {
  return create_first(comm, nranks, count > 0 ? ids : nullptr, rank, config,
                      [&](ncclComm_t* out, ncclConfig_t* own) {
                        return nccl().ncclCommInitRankScalable(out, nranks, rank, count, ids, own);
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
      if (devices[j] == device && !may_share_gpus()) return ncclInvalidUsage;
  }
  current_or_first();
  ncclUniqueId id;
  ncclResult_t result = nccl().ncclGetUniqueId(&id);
  if (result == ncclSuccess) result = Call<&Table::ncclGroupStart>::run("");
  if (result != ncclSuccess) return result;
  const ncclConfig_t defaults{};
  CreationConfig own(&defaults);
  for (int i = 0; i < count; ++i)  // the end of the group reports a failure
    create(comms + i, devices ? devices[i] : i, own.blocking(true), text_of(id),
           [&](ncclComm_t* out) {
             return nccl().ncclCommInitRankConfig(out, count, id, i, own.get());
           });
  return Call<&Table::ncclGroupEnd>::run("");
}

ncclResult_t Call<&Table::ncclCommSplit>::run(const char*, ncclComm_t comm, int color, int key,
                                              ncclComm_t* out, ncclConfig_t* config) {
  if (const CommunicatorRef parent = find_communicator(comm); parent && before_24())
    parent->refused.store(ncclSuccess);
  return create_child(comm, out, config, ":split", color, [&](ncclComm_t* made, ncclConfig_t* own) {
    return nccl().ncclCommSplit(engine_handle(comm), color, key, made, own);
  });
}

ncclResult_t Call<&Table::ncclCommShrink>::run(const char*, ncclComm_t comm, int* excluded,
                                               int count, ncclComm_t* out, ncclConfig_t* config,
                                               int flags) {
  const ncclResult_t result =
      create_child(comm, out, config, ":shrink", count, [&](ncclComm_t* made, ncclConfig_t* own) {
        return nccl().ncclCommShrink(engine_handle(comm), excluded, count, made, own, flags);
      });
  // The handle is set at the end of the group.
  if (result == ncclSuccess && Group::of_this_thread().depth > 0) *out = nullptr;
  return result;
}

// Its ranks are not tracked: existing and new ranks share no key.
ncclResult_t Call<&Table::ncclCommGrow>::run(const char*, ncclComm_t comm, int nranks,
                                             const ncclUniqueId* id, int rank, ncclComm_t* out,
                                             ncclConfig_t* config) {
  const CommunicatorRef parent = find_communicator(comm);
  const CallGuard guard(parent);
  const int device = parent ? parent->device : current_or_first().device();
  CreationConfig own(config);
  if (!own.valid()) return refuse_child(out);
  return create(
      out, device, own.blocking(!parent || parent->blocking), {},
      [&](ncclComm_t* made) {
        return nccl().ncclCommGrow(engine_handle(comm), nranks, id, rank, made, own.get());
      },
      parent);
}

ncclResult_t Call<&Table::ncclCommFinalize>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommFinalize(comm);
  const CallGuard guard(communicator);
  if (const ncclResult_t refused = communicator->unready(); refused != ncclSuccess) return refused;
  const bool before = communicator->finalized.exchange(true);
  if (!before) communicator->wait_for_graphs();
  ncclResult_t result = communicator->refuse(nccl().ncclCommFinalize(communicator->engine));
  if (result == ncclInProgress &&
      communicator->blocking) {  // the engine's communicator does not block
    communicator->wait_while_in_progress();
    result = communicator->state();
  }
  const bool done = result == ncclSuccess || result == ncclInProgress;
  if (!done) communicator->finalized = before;
  if (done && communicator->peers) communicator->peers->close();
  return result;
}

ncclResult_t Call<&Table::ncclCommDestroy>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommDestroy(comm);
  ncclResult_t unready = communicator->unready();
  if (communicator->creation_failed && kNcclVersion < 22800) unready = ncclSuccess;
  if (unready == ncclSuccess && !communicator->blocking && communicator->state() == ncclInProgress)
    unready = ncclInvalidArgument;
  if (unready == ncclSuccess && !before_24() && communicator->failed())
    unready = communicator->state();
  if (unready != ncclSuccess) {
    if (!before_24())  // it leaves the thread in a group
      Call<&Table::ncclGroupStart>::run("ncclGroupStart");
    return before_24() ? ncclInvalidArgument : unready;
  }
  if (communicator->calls.load() > 0)
    report_violation("ncclCommDestroy frees a communicator that a call of another thread uses");
  finalize_before_free(*communicator);
  wait_for_peers(*communicator);
  const ncclResult_t result = nccl().ncclCommDestroy(communicator->engine);
  if (result == ncclSuccess) {
    communicator->aborted.store(true);
    communicator->freed.store(true);
    withdraw(comm);
  }
  return result;
}

ncclResult_t Call<&Table::ncclCommAbort>::run(const char*, ncclComm_t comm) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommAbort(comm);
  if (communicator->engine == nullptr) {  // its group has failed
    withdraw(comm);
    return ncclSuccess;
  }
  // Before ncclCommRevoke nothing else ends a call.
  if (communicator->calls.load() > 0 && kNcclVersion >= 22807)
    report_violation("ncclCommAbort frees a communicator that a call of another thread uses");
  const ncclResult_t result = nccl().ncclCommAbort(communicator->engine);
  if (result != ncclSuccess) return result;
  communicator->aborted.store(true);
  wait_while([&] { return communicator->followed.load() > 0; });
  withdraw(comm);
  finalize_before_free(*communicator);
  if (communicator->peers) communicator->peers->close();
  communicator->freed.store(true);
  return result;
}

ncclResult_t Call<&Table::ncclCommRevoke>::run(const char*, ncclComm_t comm, int flags) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (!communicator) return nccl().ncclCommRevoke(comm, flags);
  const CallGuard guard(communicator);
  // The flag of a finalized communicator, which a revocation also sets (init.cc:2976, 2990).
  if (communicator->finalized) return ncclInvalidArgument;
  const ncclResult_t result = nccl().ncclCommRevoke(communicator->engine, flags);
  if (result == ncclSuccess || result == ncclInProgress) {
    communicator->revoked = true;
    communicator->issuing.store(!communicator->blocking);
    communicator->finalized = true;
    communicator->refused.store(ncclSuccess);
    // Of NCCL's streams (init.cc:2942), which are ordered after all earlier work of the users'.
    if (communicator->blocking) communicator->wait_for_streams();
  }
  return result;
}

ncclResult_t Call<&Table::ncclCommGetAsyncError>::run(const char*, ncclComm_t comm,
                                                      ncclResult_t* error) {
  const CommunicatorRef communicator = find_communicator(comm);
  const ncclResult_t result = nccl().ncclCommGetAsyncError(engine_handle(comm), error);
  if (!communicator || result != ncclSuccess) return result;
  if (*error == ncclSuccess) communicator->learn();
  if (*error == ncclSuccess) *error = communicator->network.load();
  if (const ncclResult_t kept = communicator->refused.load(); kept != ncclSuccess) {
    *error = kept;
    return ncclSuccess;
  }
  if (*error == ncclSuccess && communicator->followed.load() > 0) *error = ncclInProgress;
  const bool busy =
      communicator->issuing.exchange(false) || communicator->connects() || communicator->stuck;
  if (busy && *error == ncclSuccess) *error = ncclInProgress;
  if (*error == ncclSuccess && !communicator->blocking && communicator->revoked &&
      communicator->pending.load() > 0)
    *error = ncclInProgress;
  if (*error == ncclRemoteError && dead_peers_spin()) *error = ncclSuccess;
  if (*error == ncclRemoteError) communicator->network.store(*error);
  return result;
}

static ncclResult_t query(ncclResult_t (*entry)(ncclComm_t, int*), ncclComm_t comm, int* value) {
  const CommunicatorRef communicator = find_communicator(comm);
  if (communicator && communicator->busy()) return ncclInvalidArgument;
  return entry(engine_handle(comm), value);
}

ncclResult_t Call<&Table::ncclCommCount>::run(const char*, ncclComm_t comm, int* count) {
  return query(nccl().ncclCommCount, comm, count);
}

ncclResult_t Call<&Table::ncclCommUserRank>::run(const char*, ncclComm_t comm, int* rank) {
  return query(nccl().ncclCommUserRank, comm, rank);
}

ncclResult_t Call<&Table::ncclCommCuDevice>::run(const char*, ncclComm_t comm, int* device) {
  const ncclResult_t result = query(nccl().ncclCommCuDevice, comm, device);
  const CommunicatorRef communicator = find_communicator(comm);
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

// Does not wait for users of the memory.
ncclResult_t Call<&Table::ncclMemFree>::run(const char*, void* ptr) {
  const RangeRef range = ptr ? take_range(ptr) : nullptr;
  if (!range) return nccl().ncclMemFree(ptr);
  free_range(range, "ncclMemFree");
  return ncclSuccess;
}

}  // namespace cuda_double
