// Segment: the shared memory of one communicator. A process maps it once, even if several ranks are
// its threads.
//
// The first failure of any rank is written to the segment and ends it for all ranks: every waiting
// and every later operation gets that code and text.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "hostnccl/base/error.h"
#include "hostnccl/base/fd.h"
#include "hostnccl/base/keys.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/tuning.h"
#include "hostnccl/segment/comm_settings.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

class Segment {
 public:
  static size_t bytes(int nranks);

  // The memory file of a new segment, with its secret.
  static Fd make_file(int nranks);

  // Maps the memory file. -1: private memory of this process, for a single rank.
  Segment(int fd, int nranks);
  ~Segment();

  // Known only to the ranks of this segment.
  const Secret& secret() const { return header_->secret; }
  // A number other than 0 that is the same on all ranks and does not reveal the secret.
  uint64_t identity() const { return identity_; }
  int nranks() const { return nranks_; }
  RankState& rank_state(int rank) const { return rank_states_[static_cast<size_t>(rank)]; }
  PairRing& pair_ring(int source, int destination) const {
    return pair_rings_[static_cast<size_t>(source) * static_cast<size_t>(nranks_) +
                       static_cast<size_t>(destination)];
  }

  void set_process(int rank, const ProcessId& process);  // before any rank runs
  ProcessId process(int rank) const { return {rank_state(rank).pid, rank_state(rank).start}; }
  bool same_process(int rank) const { return rank_state(rank).pid == own_pid_; }
  bool within_process() const;  // whether all ranks are threads of this process
  // The number of ranks if there are more than CPUs on which any of them may run, otherwise 0.
  int competing_ranks() const { return competing_ranks_; }
  // Publishes the CPU of a rank that waits, plus 1, and whether other processes compete for it.
  void publish_cpu(int rank, int cpu, bool contended) const;
  // Moves this thread, which runs the rank, to the CPUs with the fewest ranks, if they then have
  // fewer than its own one has now, or to any other CPU if one is idle. At most once per
  // millisecond. Returns whether it did.
  bool move_to_other_cpu(int rank) const;

  // The setup, in lockstep: a rank calls the next function when all ranks have signalled the
  // previous step. Each rank has kSetupSteps.
  static constexpr uint32_t kSetupSteps = 2;
  void announce_rank(int rank, const CommSettings& settings);  // signals step 1
  void probe_peer_memory(int rank);                            // signals step 2
  void finish_setup();                                         // before the first operation

  // Decides the outcome of the setup, on the first call of any rank: all ranks have completed both
  // steps, or one has given up. Returns whether that is the outcome requested here.
  bool end_setup(Header::Setup how);

  // The thresholds. Those of collectives are the maxima over all ranks, and SIZE_MAX unless every
  // rank can read the memory of every other one.
  const Tuning& tuning() const { return tuning_; }
  bool supports_direct() const { return tuning_.direct[0] != SIZE_MAX; }

  // The measurements, which rank 0 publishes before step 1 if it knows them, else after a
  // calibration. Available once tuned() is 1.
  Flag& tuned() const { return header_->tuned; }
  void set_tuning(const std::optional<Measurements>& measured);
  std::optional<Measurements> measurements() const;

  bool failed() const { return header_->failure.load(std::memory_order_acquire) != Header::None; }
  Error failure() const;
  void fail(const Error& error);  // later failures are ignored

  // Throws if the condition can no longer be met because the segment has failed, or because the
  // owner, the rank that signals the flag, has left. With check_process, also if the process of the
  // owner is dead.
  void check_owner(int rank, const WaitCondition& condition, bool check_process) const;
  // The same for a flag that a rank signals even after it has revoked its communicator, until it
  // begins a recovery without own_rank.
  void check_agreement_peer(int rank, int own_rank, const WaitCondition& condition,
                            bool check_process) const;

  // Throws if a rank can no longer become a member of a communicator that own_rank derives.
  void check_member(int rank, int own_rank) const;

  bool is_available(int rank) const { return how_unavailable(rank, true, false) == nullptr; }
  std::atomic<uint64_t>& recovery() const { return header_->recovery; }  // for Recovery

  // The resident bytes of one rank: its RankState and the rings through which it sends, on rank 0
  // also the header. release_memory() frees the releasable part.
  struct MemoryUsage {
    size_t releasable;
    size_t persistent;
  };
  MemoryUsage memory_usage(int rank) const;
  // Frees the pages of the staging buffers and of the rings without a message in transit. They
  // become zeros. No rank may be in an operation.
  void release_memory(int rank) const;

  void leave(int rank, Presence how);
  void wake_all() const;
  std::string name_of(int rank) const;  // "rank 2 (pid 4711)"

 private:
  void check_settings(int rank) const;
  // How a rank became unavailable, as the predicate of an error text. Null if it is available.
  // After a revocation a rank is available for agreements but not for operations.
  const char* how_unavailable(int rank, bool check_process, bool for_operations) const;
  // The same for the creations of own_rank, which a rank leaves when it begins a recovery.
  const char* how_unavailable_to(int own_rank, int rank, bool check_process) const;

  int nranks_;
  int own_pid_;
  size_t bytes_;
  void* memory_;
  Header* header_;
  std::span<RankState> rank_states_;
  std::span<PairRing> pair_rings_;
  std::atomic<int> competing_ranks_{0};
  Tuning tuning_{};
  std::once_flag tuning_is_set_;
  mutable std::atomic<bool> waited_for_failure_{false};  // in vain: its writer was killed
  uint64_t probe_value_;
  uint64_t identity_;
};

}  // namespace hostnccl
