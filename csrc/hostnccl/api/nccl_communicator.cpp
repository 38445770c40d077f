// NCCL's C API: the version, unique ids, errors, encryption, and communicators from initialization
// to destruction. Each function checks its arguments and calls the engine.
#include <optional>
#include <vector>

#include "hostnccl/api/arguments.h"
#include "hostnccl/api/nccl_api.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/lifecycle/jobs.h"
#include "hostnccl/rendezvous/encryption.h"

using namespace hostnccl;

namespace {

ncclResult_t init(ncclComm_t* comm, int nranks, int rank, int ids, const ncclUniqueId* id,
                  const ncclConfig_t* config) {
  non_null(comm, "comm");
  if (nranks >= 1) *comm = nullptr;  // as in NCCL
  check_size_and_rank(nranks, rank);
  if (ids < 1 || ids > nranks)
    fail(ncclInvalidArgument, "nId=%d is not in [1, nranks=%d]", ids, nranks);
  non_null(id, "commIds");
  const RendezvousKey key = rendezvous_key(*id);
  for (int i = 1; i < ids; ++i) rendezvous_key(id[i]);
  const CommSettings settings = read_config(config);
  return Group::current().submit(init_job(comm, nranks, rank, key, settings));
}

// Closes the handle of a communicator. Calls in progress keep it alive by their references.
Ref<Communicator> close_handle(ncclComm_t handle, const char* function) {
  Ref<Communicator> comm = open_comm(handle);
  if (Group::current().uses(comm)) {
    fail(ncclInvalidUsage, "%s on a communicator that the open group uses", function);
  }
  if (!handles<Communicator>().close(comm)) {
    fail(ncclInvalidArgument, "comm=%p was already destroyed", static_cast<void*>(handle));
  }
  return comm;
}

// Rejects a communicator that can only be aborted. As in NCCL, the thread is in a group afterwards.
void check_destroyable(const Communicator& comm) {
  if (!comm.strict_calls() || !comm.state().of_this_process()) return;
  const ncclResult_t state = comm.state().async_error();
  if (state == ncclSuccess) return;
  Group::current().start();
  fail(state == ncclInProgress ? ncclInvalidArgument : state,
       "comm is not ready, or has an error: it can only be aborted, and this thread is in a group");
}

ncclResult_t finalize(const Ref<Communicator>& comm) {
  if (comm->state().revoked()) {
    fail(ncclInvalidArgument, "comm was revoked: it cannot be finalized, only destroyed");
  }
  if (comm->state().finalized()) {
    fail(ncclInvalidArgument, "comm was already finalized by ncclCommFinalize");
  }
  comm->check_finalizable();
  if (Group::current().uses(comm)) {
    fail(ncclInvalidUsage, "ncclCommFinalize on a communicator that the open group uses");
  }
  comm->state().start_finalizing();
  if (comm->settings().blocking) {
    comm->finalize();
    return ncclSuccess;
  }
  try {
    start_worker([comm, guard = std::make_shared<JobGuard>(comm)] {
      guarded([&comm] { comm->finalize(); });
    });
  } catch (...) {
    comm->state().fail(current_error());  // no thread can finish the finalization
    throw;
  }
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return guarded([=] { *non_null(version, "version") = kVersion; });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  return guarded([=] { *non_null(uniqueId, "uniqueId") = make_unique_id(); });
}

const char* ncclGetErrorString(ncclResult_t result) { return result_text(result); }

const char* ncclGetLastError(ncclComm_t handle) {
  bool of_any_thread = false;  // NCCL has one text for all threads
  guarded([&] {
    const Ref<Communicator> comm = handles<Communicator>().find(handle);
    const std::optional<std::string> text = comm ? comm->state().error_text() : std::nullopt;
    if (text) remember_error(*text);
    of_any_thread = param_number(ParamId::Strict) != 0;
  });
  return last_error(of_any_thread);
}

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  return guarded([=] { set_encryption(config); });
}

// Makes NCCL read its debug settings again. hostnccl has no such settings.
void ncclResetDebugInit() {}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return group_guarded([&] { return init(comm, nranks, rank, 1, &commId, nullptr); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  return group_guarded([&] { return init(comm, nranks, rank, 1, &commId, config); });
}

// Uses only the first id: on one machine, several rendezvous would not be faster.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config) {
  return group_guarded([&] { return init(newcomm, nranks, myrank, nId, commIds, config); });
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return group_guarded([&] {
    non_null(comm, "comm");
    if (ndev < 1 || ndev > kMaxRanks) {
      fail(ncclInvalidArgument, "ndev=%d is not in [1, %d]", ndev, kMaxRanks);
    }
    for (int i = 0; i < ndev && devlist != nullptr; ++i) {
      if (devlist[i] != 0) {
        fail(ncclInvalidArgument, "devlist[%d]=%d: the only device of hostnccl is 0", i,
             devlist[i]);
      }
    }
    const RendezvousKey key = random_key();
    std::vector<Job> jobs;
    jobs.reserve(static_cast<size_t>(ndev));
    for (int rank = 0; rank < ndev; ++rank) {
      jobs.push_back(init_job(comm + rank, ndev, rank, key, CommSettings()));
    }
    Group& group = Group::current();
    if (!group.active()) return run_jobs(jobs.data(), jobs.size());
    for (Job& job : jobs) group.submit(std::move(job));
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return group_guarded([&] {
    if (comm == nullptr) return ncclSuccess;
    const Ref<Communicator> finalized = open_comm(comm);
    return noting_refusal(finalized, [&] { return finalize(finalized); });
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return group_guarded([&] {
    if (comm == nullptr) return;
    check_destroyable(*open_comm(comm));
    close_handle(comm, "ncclCommDestroy")->destroy();
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return group_guarded([&] {
    if (comm == nullptr) return;
    close_handle(comm, "ncclCommAbort")->abort();
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return guarded([=] {
    const Ref<Communicator> asked = open_comm(comm);
    *non_null(asyncError, "asyncError") = asked->state().async_error();
    asked->state().end_issuing();
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return guarded([=] {
    const Ref<Communicator> asked = ready_comm(comm);
    asked->state().check_not_in_progress();
    *non_null(count, "count") = asked->nranks();
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return guarded([=] {
    ready_comm(comm);
    *non_null(device, "device") = 0;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return guarded([=] { *non_null(rank, "rank") = ready_comm(comm)->rank(); });
}

}  // extern "C"
