// NCCL's C API but for what has a file of its own (api_*.cpp): each function checks its arguments
// and hands over to the engine.
#include <cstddef>
#include <optional>
#include <vector>

#include "hostnccl/api/api.h"
#include "hostnccl/api/arguments.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/lifecycle/init.h"
#include "hostnccl/rendezvous/encryption.h"
#include "hostnccl/segment/memory.h"

using namespace hostnccl;

namespace {

ncclResult_t init(ncclComm_t* comm, int nranks, int rank, int ids, const ncclUniqueId* id,
                  const ncclConfig_t* config) {
  *non_null(comm, "comm") = nullptr;
  check_size_and_rank(nranks, rank);
  if (ids < 1) fail(ncclInvalidArgument, "nId=%d is not positive", ids);
  non_null(id, "commIds");
  const RendezvousName name = rendezvous_name(*id);
  for (int i = 1; i < ids; ++i) rendezvous_name(id[i]);
  const Settings settings = read_config(config);
  return Group::of_this_thread().submit(init_job(comm, nranks, rank, name, settings));
}

// Takes the handle of a communicator away; from here on only those inside still use it.
Ref<Communicator> take(ncclComm_t handle, const char* function) {
  Ref<Communicator> comm = open_comm(handle);
  if (Group::of_this_thread().uses(comm)) {
    fail(ncclInvalidUsage, "%s on a communicator that the open group still uses", function);
  }
  if (!communicators().close(comm)) {
    fail(ncclInvalidArgument, "comm=%p is no longer a communicator", static_cast<void*>(handle));
  }
  return comm;
}

std::optional<Error> mistake_in(const ncclSimInfo_t* info) {
  constexpr size_t kSmallest = offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float);
  if (info == nullptr || (info->magic == kSimInfoMagic && info->size >= kSmallest)) return {};
  return Error(ncclInvalidArgument, "simInfo was not initialised with NCCL_SIM_INFO_INITIALIZER");
}

ncclResult_t finalize(const Ref<Communicator>& comm) {
  if (comm->state().revoked()) {
    fail(ncclInvalidArgument, "comm was revoked: it can be destroyed, but not finalized");
  }
  comm->state().check_usable();
  if (Group::of_this_thread().uses(comm)) {
    fail(ncclInvalidUsage, "ncclCommFinalize on a communicator that the open group still uses");
  }
  comm->state().start_finalizing();
  if (comm->settings().blocking) {
    comm->finalize();
    return ncclSuccess;
  }
  start_thread([comm, busy = std::make_shared<JobGuard>(comm)] {
    guarded([&comm] {
      comm->finalize();
      return ncclSuccess;
    });
  });
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return guarded([=] {
    *non_null(version, "version") = kVersion;
    return ncclSuccess;
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  return guarded([=] {
    *non_null(uniqueId, "uniqueId") = make_unique_id();
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) { return result_text(result); }

const char* ncclGetLastError(ncclComm_t handle) {
  guarded([=] {
    const Ref<Communicator> comm = communicators().find(handle);
    const std::optional<std::string> text = comm ? comm->state().error_text() : std::nullopt;
    if (text) remember_error(*text);
    return ncclSuccess;
  });
  return last_error();
}

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  return guarded([=] {
    set_encryption(config);
    return ncclSuccess;
  });
}

// NCCL reads its debug settings again; this engine prints nothing and so has none.
void ncclResetDebugInit() {}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return checked([&] { return init(comm, nranks, rank, 1, &commId, nullptr); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  return checked([&] { return init(comm, nranks, rank, 1, &commId, config); });
}

// The first id is the one used: a machine has no need of several meeting places.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config) {
  return checked([&] { return init(newcomm, nranks, myrank, nId, commIds, config); });
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return checked([&] {
    non_null(comm, "comm");
    if (ndev < 1 || ndev > kMaxRanks) {
      fail(ncclInvalidArgument, "ndev=%d is not in [1, %d]", ndev, kMaxRanks);
    }
    for (int i = 0; i < ndev && devlist != nullptr; ++i) {
      if (devlist[i] != 0) {
        fail(ncclInvalidArgument, "devlist[%d]=%d: hostnccl has the one device 0", i, devlist[i]);
      }
    }
    const RendezvousName name = random_name();
    std::vector<Job> jobs;
    for (int rank = 0; rank < ndev; ++rank) {
      jobs.push_back(init_job(comm + rank, ndev, rank, name, Settings()));
    }
    Group& group = Group::of_this_thread();
    if (!group.active()) return run_jobs(jobs.data(), jobs.size());
    for (Job& job : jobs) group.submit(std::move(job));
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return checked([&] { return finalize(open_comm(comm)); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return checked([&] {
    if (comm == nullptr) return ncclSuccess;
    take(comm, "ncclCommDestroy")->destroy();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return checked([&] {
    if (comm == nullptr) return ncclSuccess;
    take(comm, "ncclCommAbort")->abort();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return guarded([=] {
    *non_null(asyncError, "asyncError") = open_comm(comm)->state().async_error();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return guarded([=] {
    *non_null(count, "count") = ready_comm(comm)->nranks();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return guarded([=] {
    ready_comm(comm);
    *non_null(device, "device") = 0;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return guarded([=] {
    *non_null(rank, "rank") = ready_comm(comm)->rank();
    return ncclSuccess;
  });
}

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  return guarded([=] {
    *non_null(ptr, "ptr") = allocate_memory(size);
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* ptr) {
  return guarded([=] {
    if (ptr != nullptr) free_memory(ptr);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buff, size_t, void** handle) {
  return guarded([=] {
    const Ref<Communicator> registrar = usable_comm(comm);
    non_null(buff, "buff");
    *non_null(handle, "handle") = registrar->registrations().add();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return guarded([=] {
    if (!ready_comm(comm)->registrations().remove(handle)) {
      fail(ncclInvalidArgument, "handle=%p is not one that ncclCommRegister gave for this comm",
           handle);
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([=] {
    non_null(op, "op");
    const Ref<Communicator> owner = usable_comm(comm);
    non_null(scalar, "scalar");
    check_dtype(datatype);
    Multiplier multiplier;
    if (residence == ncclScalarDevice) {
      multiplier.from = Multiplier::From::Address;
      multiplier.address = scalar;
    } else if (residence == ncclScalarHostImmediate) {
      multiplier.from = Multiplier::From::Value;
      multiplier.value = load_scalar(scalar, datatype);
    } else {
      fail(ncclInvalidArgument, "residence=%u is not one of ncclScalarResidence_t",
           static_cast<unsigned>(residence));
    }
    *op = owner->red_ops().add(multiplier, datatype);
    return ncclSuccess;
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([=] {
    ready_comm(comm)->red_ops().remove(op);
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  return guarded([] {
    Group::of_this_thread().start();
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return guarded([] { return Group::of_this_thread().end(); });
}

// The group ends also where simInfo is wrong, as in NCCL.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return guarded([=] {
    const std::optional<Error> mistake = mistake_in(simInfo);
    Group& group = Group::of_this_thread();
    if (mistake && group.active()) group.note_failure(*mistake);
    const std::optional<double> microseconds = group.end_simulated();
    if (mistake) throw *mistake;
    if (microseconds && simInfo != nullptr) {
      simInfo->estimatedTime = static_cast<float>(*microseconds);
    }
    return ncclSuccess;
  });
}

}  // extern "C"
