#include "hostnccl/lifecycle/derive.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "hostnccl/lifecycle/init.h"
#include "hostnccl/lifecycle/record_exchange.h"
#include "hostnccl/lifecycle/sequence_guard.h"
#include "hostnccl/rendezvous/refusal.h"

namespace hostnccl {
namespace {

// Identifies a creation in RankState::given_up: before the ranks know its key, and afterwards.
uint64_t mark_of(const Job& job) {
  return job.agreement != 0 ? uint64_t{2} << 32 | job.agreement : uint64_t{1} << 32 | job.sequence;
}

uint64_t mark_of(const RendezvousKey& key) {
  uint64_t mark;
  std::memcpy(&mark, key.data(), sizeof mark);
  return mark;
}

// Runs a step of the creation. If it fails, ranks that wait for this one in a later step see it.
template <typename Step>
auto take_step(const Job& job, uint64_t mark, Step&& step) {
  try {
    return step();
  } catch (...) {
    job.parent->segment().rank_state(job.parent->rank()).given_up.store(mark);
    throw;
  }
}

// Throws if a missing rank of the new communicator is a parent's rank that died, left or gave up.
// members are the parent's ranks, in the order of their new ranks; the ranks after them join from
// outside.
Rendezvous::Watch watch_members(const Job& job, std::vector<int> members,
                                const RendezvousKey& key) {
  return [parent = job.parent, members = std::move(members), before = mark_of(job),
          mark = mark_of(key)](int rank) {
    if (rank >= static_cast<int>(members.size())) return;
    const int member = members[static_cast<size_t>(rank)];
    const Segment& segment = parent->segment();
    segment.check_member(member);
    const uint64_t given_up = segment.rank_state(member).given_up.load();
    if (given_up == before && segment.failed()) throw segment.failure();
    if (given_up == before || given_up == mark) {
      fail(abi::ncclRemoteError, "%s gave up making the communicator",
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

// A revoked parent runs no operations: there an agreement exchanges the records.
std::vector<ExchangeRecord> exchange_records(const Job& job, Kind kind, const ExchangeRecord& own) {
  return take_step(job, mark_of(job), [&] {
    if (job.agreement == 0)
      return exchange_records(job.parent, kind, own, job.sequence, job.creation.get());
    const Derivations::Scope derivation(job.parent->derivations(), *job.creation);
    return job.parent->agreement().exchange_records(own, job.agreement, *job.creation);
  });
}

void split(const Job& job, int color, int key) {
  // Every rank proposes a random key; that of the new rank 0 is used.
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
    take_step(job, mark_of(job), [&] {
      const SequenceGuard earlier_operations_are_complete(parent, job.sequence, job.creation.get());
    });
  }
  std::vector<int> members;
  for (int rank = 0; rank < parent.nranks(); ++rank) {
    if (!std::binary_search(excluded.begin(), excluded.end(), rank)) members.push_back(rank);
  }
  initialize(job, members, static_cast<int>(members.size()),
             parent.derived_keys().shrink_key(parent.segment().secret(), excluded));
}

// The key of the root.
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
         "no rank passes a uniqueId: the rank that called ncclCommGetUniqueId has to pass it");
  }
  return all[static_cast<size_t>(root)].key;
}

void grow(const Job& job, int nranks, const std::optional<RendezvousKey>& id) {
  RendezvousKey key;
  try {
    key = agree_to_grow(job, nranks, id);
  } catch (const Error& error) {
    if (id) tell_host(*id, error);  // the new ranks wait there
    throw;
  }
  if (id) job.parent->derived_keys().use_grow_id();
  std::vector<int> members(static_cast<size_t>(job.parent->nranks()));
  std::iota(members.begin(), members.end(), 0);
  initialize(job, members, nranks, key);
}

Job child_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, const CommSettings& settings,
              bool shares = false) {
  Job job;
  job.creation = std::make_shared<Creation>();
  job.comm = communicators().open(std::make_unique<Communicator>(
      settings, job.creation, shares && settings.strict ? parent : Ref<Communicator>()));
  job.parent = parent;
  job.out = out;
  job.blocking = settings.blocking;
  *out = handle_of(job.comm);
  return job;
}

// In NCCL the parent of a split or shrink decides whether it blocks, and the handle is null until
// the child is ready.
void follow_parent(Job& job) {
  const CommSettings& settings = job.parent->settings();
  if (!settings.strict_calls) return;
  job.blocking = settings.blocking;
  job.late = true;
  *job.out = nullptr;
}

}  // namespace

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
    fail(abi::ncclRemoteError, "pid %d, which had made the uniqueId to grow with, died",
         creator.pid);
  });
}

}  // namespace hostnccl
