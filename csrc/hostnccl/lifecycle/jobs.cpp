#include "hostnccl/lifecycle/jobs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "common/per_process.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/rendezvous/rendezvous.h"

namespace hostnccl {
namespace {

// The unique ids with which ranks of this process have created communicators, in strict mode. In
// NCCL a second creation never returns, unless NCCL_COMM_ID provides one id for all creations.
class UsedIds {
 public:
  void add(const RendezvousKey& key, int rank) {
    const std::lock_guard lock(mutex_);
    used_.emplace(key, rank);
  }
  void check(const RendezvousKey& key, int rank) {
    if (std::getenv("NCCL_COMM_ID") != nullptr) return;
    const std::lock_guard lock(mutex_);
    if (!used_.contains({key, rank})) return;
    fail(abi::ncclInvalidUsage,
         "commId: rank %d has already created a communicator with it, and NCCL would never return. "
         "Each communicator needs its own id from ncclGetUniqueId",
         rank);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<RendezvousKey, int>> used_;
};

// Returns when the operations before the job are complete. Throws, like an operation, if they
// cannot complete. If this rank gives up the creation, the parent fails, because no later operation
// can run.
void await_earlier_operations(const Job& job) {
  Communicator& parent = *job.parent;
  const Blocked earlier{parent.order().before(job.sequence), parent.rank()};
  const Sleeping sleeping({earlier.condition});
  sleep_until(earlier.condition, [&](bool) {
    parent.state().check_wait(earlier, false);
    const auto reason = job.creation->given_up();
    // This rank may have been preempted since it last looked at the flag.
    if (!reason || earlier.condition.met()) return;
    parent.state().fail(Error(reason->code(), parent.segment().name_of(parent.rank()) + " " +
                                                  reason->text() +
                                                  "; it waited for earlier operations"));
    throw parent.state().error();
  });
  parent.order().complete(job.sequence);
}

// The mark of a creation in RankState::given_up, before and after the ranks know its key. A job
// that takes no sequence number only has the second one.
uint64_t mark_of(const Job& job) {
  return job.agreement != 0 ? Agreement::mark_of(job.agreement) : uint64_t{1} << 32 | job.sequence;
}

uint64_t mark_of(const RendezvousKey& key) {
  return std::bit_cast<std::array<uint64_t, 2>>(key)[0];
}

// Runs a step of the creation. If it fails, marks the creation for ranks that wait in a later step.
template <typename Step>
auto take_step(const Job& job, uint64_t mark, Step&& step) {
  try {
    return step();
  } catch (...) {
    job.parent->segment().rank_state(job.parent->rank()).given_up.add(mark);
    throw;
  }
}

// Returns a function that throws if a missing rank of the new communicator is a rank of the parent
// that died, left or gave up. members: the ranks of the parent, in the order of their new ranks.
// The ranks after them join from outside.
Rendezvous::Watch watch_members(const Job& job, std::vector<int> members,
                                const RendezvousKey& key) {
  return [parent = job.parent, members = std::move(members), numbered = job.sequence_count != 0,
          before = mark_of(job), mark = mark_of(key)](int rank) {
    if (rank >= static_cast<int>(members.size())) return;
    const int member = members[static_cast<size_t>(rank)];
    const Segment& segment = parent->segment();
    segment.check_member(member, parent->rank());
    const GivenUpCreations& given_up = segment.rank_state(member).given_up;
    const bool early = numbered && given_up.contains(before);
    if (early && segment.failed()) throw segment.failure();
    if (early || given_up.contains(mark)) {
      fail(abi::ncclRemoteError, "%s gave up creating the communicator",
           segment.name_of(member).c_str());
    }
  };
}

void initialize(const Job& job, const std::vector<int>& members, int nranks,
                const RendezvousKey& key) {
  const auto self = std::find(members.begin(), members.end(), job.parent->rank());
  const Derivations::Scope derivation(job.parent->derivations(), *job.creation);
  if (job.parent->state().aborted()) job.creation->end(Creation::End::ParentAborted);
  take_step(job, mark_of(key), [&] {
    job.comm->initialize(nranks, static_cast<int>(self - members.begin()), key,
                         watch_members(job, members, key));
  });
}

// Exchanges one record per rank of the parent, in the order of its operations. It is an all-gather,
// so a rank that makes a different call at the same position gets the error of mismatched calls, in
// which kind names the calling function. A revoked parent runs no operations, and its ranks agree.
std::vector<ExchangeRecord> exchange_records(const Job& job, Kind kind, const ExchangeRecord& own) {
  if (job.agreement != 0) {
    const Derivations::Scope derivation(job.parent->derivations(), *job.creation);
    return job.parent->agreement().exchange_records(own, job.agreement, *job.creation);
  }
  return take_step(job, mark_of(job), [&] {
    std::vector<ExchangeRecord> all(static_cast<size_t>(job.parent->nranks()));
    run_operation(job.parent, all_gather(kind, own, all), job.sequence, job.creation.get());
    return all;
  });
}

void split(const Job& job, int color, int key) {
  // Every rank proposes a random key. That of the new rank 0 is used.
  const std::vector<ExchangeRecord> all =
      exchange_records(job, Kind::Split, {color, key, random_key()});
  if (!job.comm) return;
  std::vector<int> members;
  for (int rank = 0; rank < job.parent->nranks(); ++rank) {
    if (all[static_cast<size_t>(rank)].group == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&all](int a, int b) {
    return all[static_cast<size_t>(a)].order < all[static_cast<size_t>(b)].order;
  });
  initialize(job, members, static_cast<int>(members.size()),
             all[static_cast<size_t>(members[0])].key);
}

void shrink(const Job& job, const std::vector<int>& excluded, bool aborts) {
  Communicator& parent = *job.parent;
  if (aborts) {
    parent.revoke(CommState::RevokedBy::Shrink);
    parent.order().wait_until_idle();
  } else if (!parent.state().revoked()) {
    take_step(job, mark_of(job), [&] { await_earlier_operations(job); });
  }
  std::vector<int> members;
  for (int rank = 0; rank < parent.nranks(); ++rank) {
    if (!std::binary_search(excluded.begin(), excluded.end(), rank)) members.push_back(rank);
  }
  initialize(job, members, static_cast<int>(members.size()),
             parent.derivations().shrink_key(parent.segment().secret(), excluded));
}

// Returns the key of the root.
RendezvousKey agree_to_grow(const Job& job, int nranks, const std::optional<RendezvousKey>& id) {
  const Communicator& parent = *job.parent;
  const ExchangeRecord own{nranks, id.has_value(), id.value_or(RendezvousKey{})};
  const std::vector<ExchangeRecord> all = exchange_records(job, Kind::Grow, own);
  int root = -1;
  for (int rank = 0; rank < parent.nranks(); ++rank) {
    const ExchangeRecord& record = all[static_cast<size_t>(rank)];
    if (record.group != all[0].group) {
      fail(abi::ncclInvalidUsage,
           "the ranks disagree about nRanks: rank 0 passes %d, rank %d passes %d", all[0].group,
           rank, record.group);
    }
    if (record.order != 0 && root >= 0) {
      fail(abi::ncclInvalidUsage, "ranks %d and %d both pass a uniqueId: one of them is the root",
           root, rank);
    }
    if (record.order != 0) root = rank;
  }
  if (root < 0) {
    fail(abi::ncclInvalidUsage,
         "no rank passes a uniqueId: the rank that called ncclCommGetUniqueId must pass it");
  }
  return all[static_cast<size_t>(root)].key;
}

void grow(const Job& job, int nranks, const std::optional<RendezvousKey>& id) {
  if (id) job.parent->derivations().take_grow_id();
  try {
    const RendezvousKey key = agree_to_grow(job, nranks, id);
    std::vector<int> members(static_cast<size_t>(job.parent->nranks()));
    std::iota(members.begin(), members.end(), 0);
    initialize(job, members, nranks, key);
  } catch (...) {
    if (id) refuse_ranks(*id, current_error());  // the new ranks
    throw;
  }
}

Job child_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, const CommSettings& settings,
              bool shares = false) {
  Job job;
  job.creation = std::make_shared<Creation>();
  job.comm = handles<Communicator>().open(std::make_unique<Communicator>(
      settings, job.creation, shares && settings.strict ? parent : Ref<Communicator>()));
  job.parent = parent;
  job.out = out;
  job.blocking = settings.blocking;
  *out = handle_of(job.comm);
  return job;
}

// In NCCL a split or shrink blocks if the parent is blocking, and the handle is null until the
// child is ready.
void follow_parent(Job& job) {
  const CommSettings& settings = job.parent->settings();
  if (!settings.strict_calls) return;
  job.blocking = settings.blocking;
  job.late = true;
  *job.out = nullptr;
}

// An all-gather without data, which uses no memory that a suspension releases.
void run_barrier(const Job& job, Kind kind, uint32_t sequence) {
  run_operation(job.comm, Operation{kind, abi::ncclUint8}, sequence);
}

// After the first barrier no rank reads the memory of another one. After the second one all memory
// is released.
void suspend(const Job& job) {
  run_barrier(job, Kind::Suspend, job.sequence);
  job.comm->state().set_suspended(true);
  job.comm->release_memory();
  run_barrier(job, Kind::Suspend, job.sequence + 1);
}

Job job_on(const Ref<Communicator>& comm) {
  Job job;
  job.comm = comm;
  job.parent = comm;
  job.blocking = comm->settings().blocking;
  return job;
}

}  // namespace

Job init_job(abi::ncclComm_t* out, int nranks, int rank, const RendezvousKey& key,
             const CommSettings& settings, Rendezvous::Watch watch) {
  if (settings.strict) common::per_process<UsedIds>().check(key, rank);
  Job job;
  job.creation = std::make_shared<Creation>();
  job.comm = handles<Communicator>().open(std::make_unique<Communicator>(settings, job.creation));
  job.out = out;
  job.blocking = settings.blocking;
  job.work = [nranks, rank, key, watch = std::move(watch)](const Job& self) {
    self.comm->initialize(nranks, rank, key, watch);
    if (self.comm->settings().strict) common::per_process<UsedIds>().add(key, rank);
  };
  *out = handle_of(job.comm);
  return job;
}

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const CommSettings& settings) {
  Job job;
  if (color != abi::kSplitNoColor) {
    job = child_job(out, parent, settings, parent->settings().split_share);
  } else {
    job.creation = std::make_shared<Creation>();
    job.parent = parent;
    job.out = out;
    job.blocking = settings.blocking;
  }
  follow_parent(job);
  job.agrees_if_revoked = true;
  job.work = [color, key](const Job& self) { split(self, color, key); };
  return job;
}

Job shrink_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, std::vector<int> excluded,
               bool aborts, const CommSettings& settings) {
  Job job = child_job(out, parent, settings, parent->settings().shrink_share && !aborts);
  follow_parent(job);
  if (aborts) job.sequence_count = 0;
  job.work = [excluded = std::move(excluded), aborts](const Job& self) {
    shrink(self, excluded, aborts);
  };
  return job;
}

Job grow_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int nranks,
             const std::optional<RendezvousKey>& id, const CommSettings& settings) {
  Job job = child_job(out, parent, settings);
  job.agrees_if_revoked = true;
  job.work = [nranks, id](const Job& self) { grow(self, nranks, id); };
  return job;
}

Job join_job(abi::ncclComm_t* out, int nranks, int rank, const UniqueId& id,
             const CommSettings& settings) {
  return init_job(out, nranks, rank, id.key, settings, [creator = id.creator](int) {
    if (is_alive(creator)) return;
    fail(abi::ncclRemoteError, "pid %d, which had created the uniqueId, has exited", creator.pid);
  });
}

Job suspend_job(const Ref<Communicator>& comm) {
  Job job = job_on(comm);
  job.sequence_count = 2;
  job.work = suspend;
  return job;
}

Job resume_job(const Ref<Communicator>& comm) {
  Job job = job_on(comm);
  job.work = [](const Job& self) {
    run_barrier(self, Kind::Resume, self.sequence);
    self.comm->state().set_suspended(false);
  };
  return job;
}

}  // namespace hostnccl
