// The memory that the ranks of one communicator share, and what is known of its ranks. A process
// maps it once, however many of the ranks are threads of it.
//
// The first failure of any rank is written here, and ends the segment for all: whoever waits or
// calls afterwards gets that code and text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/unique_id.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

class Segment {
 public:
  static size_t bytes(int nranks);

  // Maps fd (-1: private memory of this process, for a single rank).
  Segment(int fd, int nranks, const RendezvousName& name);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  const RendezvousName& name() const { return name_; }
  int nranks() const { return nranks_; }
  RankState& rank_state(int rank) const { return rank_states_[rank]; }
  PairRing& pair_ring(int source, int destination) const {
    return pair_rings_[static_cast<size_t>(source) * static_cast<size_t>(nranks_) +
                       static_cast<size_t>(destination)];
  }

  void set_process(int rank, const ProcessId& process);  // before any rank runs
  ProcessId process(int rank) const { return {rank_state(rank).pid, rank_state(rank).start}; }
  bool same_process(int rank) const { return rank_state(rank).pid == own_pid_; }
  bool oversubscribed() const {
    return oversubscribed_;
  }  // more ranks than CPUs for all of them together

  // The last steps of every rank's init, in lockstep: each step ends when all have taken it.
  void announce_rank(int rank, const SignalRange& signals);  // to step 1
  void probe_peer_memory(int rank);                          // to step 2
  void finish_setup();  // after step 2, before the first operation

  // What a rank contributes to a collective is read out of its memory from so many bytes on; never
  // (SIZE_MAX) unless every rank can read every other's.
  size_t direct_threshold() const { return direct_threshold_; }
  bool supports_direct() const { return direct_threshold_ != SIZE_MAX; }

  bool failed() const { return header_->failing.load(std::memory_order_acquire) != Header::None; }
  Error failure() const;
  void fail(const Error& error);  // the first one counts

  // Throws if target can no longer arrive because of the rank that should raise the word.
  void check_owner(int rank, const WaitCondition& condition, bool look_for_life) const;
  // The same for a word that is raised outside of operations, also by a rank that has revoked.
  void check_agreement_peer(int rank, const WaitCondition& condition, bool look_for_life) const;

  // Throws if a rank can no longer take part in making another communicator.
  void check_member(int rank) const;

  // Of the memory that belongs to one rank (its rank_state and the rings from it; the header is
  // rank 0's): how much of it exists, in bytes, and what of that release() gives back.
  struct MemoryUsage {
    size_t releasable;
    size_t persistent;
  };
  MemoryUsage memory_usage(int rank) const;
  // Gives back the staging and the rings in which nothing is on its way; they come back, as zeros,
  // when they are touched. No rank may be in an operation.
  void release_memory(int rank) const;

  void leave(int rank, Presence how);
  void wake_all() const;
  std::string name_of(int rank) const;  // "rank 2 (pid 4711)"

 private:
  void check_signals(int rank) const;
  // Null: it is there, for operations or for anything at all.
  const char* how_gone(int rank, bool look_for_life, bool for_operations) const;

  int nranks_;
  int own_pid_;
  RendezvousName name_;
  size_t bytes_;
  void* memory_;
  Header* header_;
  RankState* rank_states_;
  PairRing* pair_rings_;
  std::atomic<bool> oversubscribed_{false};
  std::atomic<size_t> direct_threshold_{SIZE_MAX};
  uint64_t probe_word_;
};

}  // namespace hostnccl
