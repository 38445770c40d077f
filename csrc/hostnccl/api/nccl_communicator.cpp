// NCCL's C API: the version, unique ids, errors, encryption, and communicators from initialization
// to destruction: split, shrink and grow, revocation and suspension. Each function checks its
// arguments and calls the engine.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "abi/constants.h"
#include "hostnccl/api/nccl_api.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/lifecycle/jobs.h"
#include "hostnccl/rendezvous/encryption.h"

using namespace hostnccl;

namespace {

Job checked_init_job(ncclComm_t* comm, int nranks, int rank, int ids, const ncclUniqueId* id,
                     const ncclConfig_t* config) {
  non_null(comm, "comm");
  if (nranks >= 1) *comm = nullptr;  // as in NCCL
  check_size_and_rank(nranks, rank);
  if (ids < 1 || ids > nranks)
    fail(ncclInvalidArgument, "nId=%d is not in [1, nranks=%d]", ids, nranks);
  non_null(id, "commIds");
  const RendezvousKey key = read_unique_id(*id, Purpose::Init, "commId").key;
  for (int i = 1; i < ids; ++i) read_unique_id(id[i], Purpose::Init, "commId");
  return init_job(comm, nranks, rank, key, read_config(config));
}

ncclResult_t init(ncclComm_t* comm, int nranks, int rank, int ids, const ncclUniqueId* id,
                  const ncclConfig_t* config) {
  return Group::current().submit(checked_init_job(comm, nranks, rank, ids, id, config));
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

Ref<Communicator> parent_comm(ncclComm_t handle) {
  Ref<Communicator> comm = open_comm(handle);
  comm->state().check_parent();
  return comm;
}

// Rejects a split or shrink between ncclCommGetUniqueId and ncclCommGrow, which fails or hangs in
// NCCL.
void check_not_growing(Communicator& comm) {
  if (!comm.settings().strict || !comm.derivations().growing()) return;
  fail(ncclInvalidUsage, "comm has an id of ncclCommGetUniqueId: call ncclCommGrow first");
}

// Returns a sorted copy of the list. As in NCCL, sorts the caller's list as well.
std::vector<int> read_excluded(const Communicator& comm, int* list, int count) {
  const int nranks = comm.nranks();
  if (count < 1 || count >= nranks) {
    fail(ncclInvalidArgument, "excludeRanksCount=%d is not in [1, %d)", count, nranks);
  }
  non_null(list, "excludeRanksList");
  std::vector<int> excluded(list, list + count);
  std::sort(excluded.begin(), excluded.end());
  for (size_t i = 0; i < excluded.size(); ++i) {
    if (excluded[i] < 0 || excluded[i] >= nranks) {
      fail(ncclInvalidArgument, "excludeRanksList contains %d, which is not in [0, %d)",
           excluded[i], nranks);
    }
    if (i > 0 && excluded[i] == excluded[i - 1]) {
      fail(ncclInvalidArgument, "excludeRanksList contains %d twice", excluded[i]);
    }
    if (excluded[i] == comm.rank()) {
      fail(ncclInvalidArgument,
           "excludeRanksList contains %d, which is this rank: only the remaining ranks "
           "call ncclCommShrink",
           excluded[i]);
    }
  }
  std::copy(excluded.begin(), excluded.end(), list);
  return excluded;
}

// Submits the job. As in NCCL, returns success although the child of a non-blocking parent is not
// ready.
ncclResult_t submit_child(Job job) {
  const bool late = job.late;
  const ncclResult_t result = Group::current().submit(std::move(job));
  return late && result == ncclInProgress ? ncclSuccess : result;
}

Job grow(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* out,
         const ncclConfig_t* config) {
  const Ref<Communicator> parent = parent_comm(handle);
  if (rank != -1) {
    fail(ncclInvalidArgument,
         "rank=%d: a rank of the parent communicator keeps its rank and passes -1", rank);
  }
  if (nranks <= parent->nranks() || nranks > kMaxRanks) {
    fail(ncclInvalidArgument, "nRanks=%d is not in [%d, %d]", nranks, parent->nranks() + 1,
         kMaxRanks);
  }
  std::optional<RendezvousKey> key;
  if (id != nullptr) {
    key = read_unique_id(*id, Purpose::Grow, "uniqueId").key;
    parent->derivations().check_grow_id(*key);
  }
  return grow_job(out, parent, nranks, key, read_config(config, parent->settings()));
}

Job join(int nranks, const ncclUniqueId* unique_id, int rank, ncclComm_t* out,
         const ncclConfig_t* config) {
  check_size_and_rank(nranks, rank);
  const UniqueId id = read_unique_id(*non_null(unique_id, "uniqueId"), Purpose::Grow, "uniqueId");
  return join_job(out, nranks, rank, id, read_config(config));
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
  return group_guarded([&] {
    Group& group = Group::current();
    Job job = checked_init_job(comm, nranks, rank, 1, &commId, nullptr);
    // As in NCCL, the call waits even if NCCL_COMM_BLOCKING=0 makes the communicator non-blocking.
    if (!group.active()) job.blocking = true;
    return group.submit(std::move(job));
  });
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
    const CommSettings settings = read_config(nullptr);
    std::vector<Job> jobs;
    jobs.reserve(static_cast<size_t>(ndev));
    for (int rank = 0; rank < ndev; ++rank) {
      jobs.push_back(init_job(comm + rank, ndev, rank, key, settings));
    }
    Group& group = Group::current();
    if (!group.active()) return run_jobs(jobs.data(), jobs.size());
    auto job = jobs.begin();
    try {
      for (; job != jobs.end(); ++job) group.submit(std::move(*job));
    } catch (...) {  // submit() has discarded this one
      while (++job != jobs.end()) job->discard();
      throw;
    }
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

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  return group_guarded([&] {
    non_null(newcomm, "newcomm");  // as in NCCL, written once the parent is ready
    const Ref<Communicator> parent = parent_comm(comm);
    *newcomm = nullptr;
    // NCCL treats any negative color the same, contrary to its documentation.
    if (color < 0 && color != kSplitNoColor && !parent->settings().strict) {
      fail(ncclInvalidArgument, "color=%d is neither NCCL_SPLIT_NOCOLOR nor at least 0", color);
    }
    check_not_growing(*parent);
    const CommSettings settings = read_config(config, parent->settings());
    return submit_child(split_job(newcomm, parent, color, key, settings));
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return group_guarded([&] {
    non_null(newcomm, "newcomm");  // as in NCCL, written once the arguments are valid
    if (shrinkFlags != NCCL_SHRINK_DEFAULT && shrinkFlags != NCCL_SHRINK_ABORT) {
      fail(ncclInvalidArgument,
           "shrinkFlags=%d is neither NCCL_SHRINK_DEFAULT nor NCCL_SHRINK_ABORT", shrinkFlags);
    }
    const bool aborts = shrinkFlags == NCCL_SHRINK_ABORT;
    const Ref<Communicator> parent = aborts ? ready_comm(comm) : parent_comm(comm);
    std::vector<int> excluded = read_excluded(*parent, excludeRanksList, excludeRanksCount);
    if (!aborts) check_not_growing(*parent);
    *newcomm = nullptr;
    const CommSettings settings = read_config(config, parent->settings());
    return submit_child(shrink_job(newcomm, parent, std::move(excluded), aborts, settings));
  });
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  return guarded([=] {
    const Ref<Communicator> parent = parent_comm(comm);
    if (parent->settings().strict && std::getenv("NCCL_COMM_ID") != nullptr) {
      fail(ncclInvalidUsage,
           "NCCL_COMM_ID is set in the environment: NCCL cannot create an id to grow comm");
    }
    non_null(uniqueId, "uniqueId");
    *uniqueId = parent->derivations().make_grow_id();
  });
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                          ncclComm_t* newcomm, ncclConfig_t* config) {
  return group_guarded([&] {
    *non_null(newcomm, "newcomm") = nullptr;
    return Group::current().submit(comm == nullptr
                                       ? join(nRanks, uniqueId, rank, newcomm, config)
                                       : grow(comm, nRanks, uniqueId, rank, newcomm, config));
  });
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return group_guarded([&] {
    if (comm == nullptr) return ncclSuccess;
    const Ref<Communicator> revoked = ready_comm(comm);
    if (revokeFlags != NCCL_REVOKE_DEFAULT) {
      fail(ncclInvalidArgument, "revokeFlags=%d is not NCCL_REVOKE_DEFAULT", revokeFlags);
    }
    if (revoked->state().revoked()) {
      if (revoked->derivations().end(Creation::End::ParentRevoked)) return ncclSuccess;
      fail(ncclInvalidArgument, "comm is already revoked");
    }
    if (revoked->settings().strict_calls && revoked->state().finalized())
      fail(ncclInvalidArgument, "comm was finalized: it cannot be revoked, only destroyed");
    if (Group::current().uses(revoked)) {
      fail(ncclInvalidUsage, "ncclCommRevoke on a communicator that the open group uses");
    }
    revoked->revoke(CommState::RevokedBy::Revoke);
    if (!revoked->settings().blocking) return ncclInProgress;
    revoked->order().wait_until_idle();
    return ncclSuccess;
  });
}

// As in NCCL, only NCCL_SUSPEND_MEM suspends anything.
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  return group_guarded([&] {
    const Ref<Communicator> suspended = usable_comm(comm);
    if ((flags & NCCL_SUSPEND_MEM) == 0) return ncclSuccess;
    if (suspended->shares()) {
      fail(ncclInvalidUsage,
           "comm shares its resources with another communicator (splitShare, shrinkShare): NCCL "
           "cannot suspend them");
    }
    return Group::current().submit(suspend_job(suspended));
  });
}

ncclResult_t ncclCommResume(ncclComm_t comm) {
  return group_guarded([&] {
    const Ref<Communicator> resumed = parent_comm(comm);
    if (!resumed->state().suspended()) fail(ncclInvalidUsage, "comm is not suspended");
    return Group::current().submit(resume_job(resumed));
  });
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return guarded([=] {
    const Ref<Communicator> target = ready_comm(comm);
    non_null(value, "value");
    if (stat > ncclStatGpuMemTotal) {
      fail(ncclInvalidArgument, "stat=%u is not one of ncclCommMemStat_t",
           static_cast<unsigned>(stat));
    }
    if (stat == ncclStatGpuMemSuspended) {
      *value = target->state().suspended();
      return;
    }
    const Segment::MemoryUsage held = target->memory();
    *value = stat == ncclStatGpuMemSuspend   ? held.releasable
             : stat == ncclStatGpuMemPersist ? held.persistent
                                             : held.releasable + held.persistent;
  });
}

}  // extern "C"
