// The memory that the ranks of one communicator share, and what is known of its ranks. A process
// maps it once, however many of the ranks are threads of it.
//
// The first failure of any rank is written here, and ends the world for all: whoever waits or calls
// afterwards gets that code and text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hostnccl/error.h"
#include "hostnccl/lane.h"
#include "hostnccl/process.h"
#include "hostnccl/unique_id.h"

namespace hostnccl {

class World {
 public:
  static size_t bytes(int nranks);

  // Maps fd (-1: private memory of this process, for a single rank).
  World(int fd, int nranks, const MeetingName& name);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  const MeetingName& name() const { return name_; }
  int nranks() const { return nranks_; }
  Lane& lane(int rank) const { return lanes_[rank]; }
  Channel& channel(int source, int destination) const {
    return channels_[static_cast<size_t>(source) * static_cast<size_t>(nranks_) +
                     static_cast<size_t>(destination)];
  }

  void set_process(int rank, const ProcessId& process);  // before any rank runs
  ProcessId process(int rank) const { return {lane(rank).pid, lane(rank).start}; }
  bool same_process(int rank) const { return lane(rank).pid == own_pid_; }
  bool crowded() const { return crowded_; }  // more ranks than CPUs for all of them together

  // The last steps of every rank's init, in lockstep: each step ends when all have taken it.
  void enter(int rank, const SignalRange& signals);  // to stage 1
  void probe(int rank);                              // to stage 2
  void settle();                                     // after stage 2, before the first operation

  // What a rank contributes to a collective is read out of its memory from so many bytes on; never
  // (SIZE_MAX) unless every rank can read every other's.
  size_t direct_from() const { return direct_from_; }
  bool direct() const { return direct_from_ != SIZE_MAX; }

  bool failed() const { return header_->failing.load(std::memory_order_acquire) != Header::None; }
  Error failure() const;
  void fail(const Error& error);  // the first one counts

  // Throws if target can no longer arrive because of the rank that should raise the word.
  void check_owner(int rank, const Wanted& wanted, bool look_for_life) const;
  // The same for a word that is raised outside of operations, also by a rank that has revoked.
  void check_voter(int rank, const Wanted& wanted, bool look_for_life) const;

  // Throws if a rank can no longer take part in making another communicator.
  void check_member(int rank) const;

  // Of the memory that belongs to one rank (its lane and the channels from it; the header is rank
  // 0's): how much of it exists, in bytes, and what of that release() gives back.
  struct Held {
    size_t releasable;
    size_t lasting;
  };
  Held held(int rank) const;
  // Gives back the slots and the channels in which nothing is on its way; they come back, as zeros,
  // when they are touched. No rank may be in an operation.
  void release(int rank) const;

  void leave(int rank, Presence how);
  void wake_all() const;
  std::string name_of(int rank) const;  // "rank 2 (pid 4711)"

 private:
  void check_signals(int rank) const;
  // Null: it is there, for operations or for anything at all.
  const char* how_gone(int rank, bool look_for_life, bool for_operations) const;

  int nranks_;
  int own_pid_;
  MeetingName name_;
  size_t bytes_;
  void* memory_;
  Header* header_;
  Lane* lanes_;
  Channel* channels_;
  std::atomic<bool> crowded_{false};
  std::atomic<size_t> direct_from_{SIZE_MAX};
  uint64_t probe_word_;
};

}  // namespace hostnccl
