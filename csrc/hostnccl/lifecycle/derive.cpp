#include "hostnccl/lifecycle/derive.h"

#include <algorithm>
#include <utility>

#include "hostnccl/lifecycle/init.h"
#include "hostnccl/lifecycle/record_exchange.h"
#include "hostnccl/lifecycle/sequence_guard.h"

namespace hostnccl {
namespace {

// Throws when a missing rank of the new communicator is a parent's rank that died or left. members
// are the parent's ranks, in the order of their new ranks; the ranks after them join from outside.
Rendezvous::Watch watch_members(const Ref<Communicator>& parent, std::vector<int> members) {
  return [parent, members = std::move(members)](int rank) {
    if (rank < static_cast<int>(members.size())) {
      parent->segment().check_member(members[static_cast<size_t>(rank)]);
    }
  };
}

void initialize(const Job& job, const std::vector<int>& members, int nranks,
                const RendezvousKey& key) {
  const auto self = std::find(members.begin(), members.end(), job.parent->rank());
  job.comm->initialize(nranks, static_cast<int>(self - members.begin()), key,
                       watch_members(job.parent, members));
}

// A revoked parent runs no operations: there an agreement exchanges the records.
std::vector<ExchangeRecord> exchange_records(const Job& job, Kind kind, const ExchangeRecord& own) {
  return job.agreement != 0 ? job.parent->agreement().exchange_records(own, job.agreement)
                            : exchange_records(job.parent, kind, own, job.sequence);
}

void split(const Job& job, int color, int key) {
  // Every rank proposes a random key; the one of the new rank 0 is used.
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
    const SequenceGuard earlier_operations_are_complete(parent, job.sequence);
  }
  std::vector<int> members;
  for (int rank = 0; rank < parent.nranks(); ++rank) {
    if (!std::binary_search(excluded.begin(), excluded.end(), rank)) members.push_back(rank);
  }
  initialize(job, members, static_cast<int>(members.size()),
             parent.derived_keys().shrink_key(parent.segment().secret(), excluded));
}

void grow(const Job& job, int nranks, const std::optional<RendezvousKey>& id) {
  Communicator& parent = *job.parent;
  const ExchangeRecord own{nranks, id.has_value(), id.value_or(RendezvousKey{})};
  const std::vector<ExchangeRecord> all = exchange_records(job, Kind::Grow, own);
  std::vector<int> members;
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
    members.push_back(rank);
  }
  if (root < 0) {
    fail(abi::ncclInvalidUsage,
         "no rank passes a uniqueId: the rank that called ncclCommGetUniqueId has to pass it");
  }
  if (id) parent.derived_keys().use_grow_id();
  initialize(job, members, nranks, all[static_cast<size_t>(root)].key);
}

Job child_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, const CommSettings& settings,
              bool shares = false) {
  Job job;
  job.comm = communicators().open(std::make_unique<Communicator>(
      settings, shares && settings.strict ? parent : Ref<Communicator>()));
  job.parent = parent;
  job.out = out;
  job.blocking = settings.blocking;
  *out = handle_of(job.comm);
  return job;
}

}  // namespace

Job split_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, int color, int key,
              const CommSettings& settings) {
  Job job;
  if (color != abi::kSplitNoColor) {
    job = child_job(out, parent, settings, parent->settings().split_share);
  } else {
    job.parent = parent;
    job.blocking = settings.blocking;
  }
  job.agrees_if_revoked = true;
  job.work = [color, key](const Job& self) { split(self, color, key); };
  return job;
}

Job shrink_job(abi::ncclComm_t* out, const Ref<Communicator>& parent, std::vector<int> excluded,
               bool aborts, const CommSettings& settings) {
  Job job = child_job(out, parent, settings, parent->settings().shrink_share && !aborts);
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
