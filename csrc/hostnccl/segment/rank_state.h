// Layouts in the shared segment: one Header, one RankState per rank, one PairRing per ordered pair
// of ranks. All of them start as zeros. A page has no memory until it is touched.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/base/keys.h"
#include "hostnccl/base/tuning.h"
#include "hostnccl/kernels/reduce.h"

namespace hostnccl {

inline constexpr int kMaxRanks = 1024;
inline constexpr size_t kStagingBytes = size_t{256} << 10;

// Membership of a rank. Revoked and Shrunk: a member that runs no operations any more.
enum class Presence : uint32_t { Absent, Alive, Left, Aborted, Revoked, Shrunk };

// From where the other ranks read a rank's data: from its staging buffer, from its windows if the
// data of all ranks lie in windows, or from its memory.
enum class Source : uint8_t { Staging, Windows, Memory };

// A collective call as published by one rank. The peers compare it with their own calls.
struct Descriptor {
  uint64_t count;  // elements of one block
  uint64_t send;   // addresses in the owner's memory
  uint64_t recv;
  Scalar scalar;
  int32_t root;
  uint8_t kind;
  uint8_t dtype;
  uint8_t reduce;
  uint8_t multiplies;
  uint8_t path;
  Source source;
  uint64_t tag;      // userProfilerTag, for error texts only
  uint64_t windows;  // WindowSet::identity() of a direct call
};

// The numbers of contexts and of signals per context that a rank has for each peer.
struct SignalRange {
  uint32_t contexts = 1;
  uint32_t per_context = 1;
  uint32_t index(uint32_t signal, uint32_t context) const { return context * per_context + signal; }
  uint32_t context_of(uint32_t index) const { return index / per_context; }
  friend bool operator==(const SignalRange&, const SignalRange&) = default;
};
inline constexpr uint32_t kMaxSignals = 1024;

// A rank's contribution to the derivation of new communicators.
struct ExchangeRecord {
  int32_t group;  // split: its color; grow: the new size
  int32_t order;  // split: its key; grow: 1 for the root
  RendezvousKey key;
};

// The last creations that a rank gave up, as marks of lifecycle/jobs.cpp.
class GivenUpCreations {
 public:
  static constexpr uint32_t kMarks = 64;

  void add(uint64_t mark) { marks_[next_++ % kMarks] = mark; }
  bool contains(uint64_t mark) const {
    for (const auto& one : marks_)
      if (one == mark) return true;
    return false;
  }

 private:
  std::atomic<uint32_t> next_;
  std::atomic<uint64_t> marks_[kMarks];
};

// A set of ranks that peers may read while it is written.
struct SharedRanks {
  std::atomic<uint64_t> words[kMaxRanks / 64];
};

// One wait of a thread, with a complete description. The text of a wait within the process is
// empty.
struct PublishedWait {
  uint64_t thread;
  ProcessId owner;    // the process that can end the wait
  uint64_t identity;  // of the segment. 0: none
  int rank;           // the waiting rank
  char text[220];

  void set_text(const std::string& from) { std::strncpy(text, from.c_str(), sizeof text - 1); }
};

inline constexpr size_t kPublishedWaits = 16;  // of a process

// The waits of a process. All of its threads slept from since to confirmed, in nanoseconds of
// Clock.
struct ProcessWaits {
  ProcessId process;
  int64_t since;
  int64_t confirmed;
  uint64_t count;  // of waits
  PublishedWait waits[kPublishedWaits];

  std::span<const PublishedWait> all() const { return {waits, count}; }
};

// The waits of a process's threads, published while all of them sleep (communicator/waits.h),
// followed by those of some processes for which it waits. One process
// writes, any process reads.
class WaitBoard {
 public:
  static constexpr size_t kProcesses = 8;

  void write(std::span<const ProcessWaits> processes);  // the first kProcesses
  std::vector<ProcessWaits> read() const;               // empty during a write

 private:
  std::atomic<uint64_t> version_;  // odd during a write
  std::atomic<uint64_t> count_;
  ProcessWaits processes_[kProcesses];
};

// A calibration between ranks 0 and 1: rank 0 publishes work and its number, both execute it, rank
// 1 publishes the number. See calibration.h.
struct CalibrationState {
  struct Work {
    enum Kind : uint8_t { Nothing, Message, Exchange, Blocks, Read, End } kind = Nothing;
    bool streams = false;
    uint64_t bytes = 0;
  };
  std::atomic<uint32_t> turn;
  Work work;
  uint64_t buffer;  // address in the owner's memory
};

// The state that one rank publishes. Peers only read it.
//
// Descriptors and staging buffers are double-buffered: a rank fills those of call k only after
// every rank has published call k-1, and therefore has finished reading those of call k-2.
// Agreements work even after the segment has failed. A rank may give up several of them and publish
// the record of a later one, while a peer still reads that of an earlier one.
struct alignas(4096) RankState {
  alignas(128) Flag step;  // of the setup, then of the running collective
  alignas(128) Descriptor descriptors[2];
  alignas(128) Flag agreement_step;  // number of the last published record
  ExchangeRecord records[GivenUpCreations::kMarks];
  Flag recovery_step;        // number of the last recovery in which it takes part
  SharedRanks survivors[2];  // its proposals for that recovery and the previous one
  Flag called;               // in strict mode, 1: it has called a collective
  GivenUpCreations given_up;
  alignas(128) std::atomic<Presence> presence;
  std::atomic<uint32_t> accessing;  // 1 while this rank reads peers' buffers by pointer
  int32_t pid;
  uint64_t start;  // start time of the process: see ProcessId
  uint64_t probe;  // address of a known value in this process, for tests of direct reads
  cpu_set_t cpus;  // on which this rank may run
  uint64_t direct_thresholds[kPatterns];  // SIZE_MAX if this rank cannot read directly
  SignalRange signals;
  bool strict;
  alignas(128) std::atomic<int> cpu;  // of its last wait that was not short, plus 1; 0: unknown
  std::atomic<Clock::rep> contended;  // when other processes last competed for that CPU
  alignas(128) CalibrationState calibration;
  alignas(4096) WaitBoard waits;  // of this rank's process
  alignas(4096) unsigned char staging_buffers[2][kStagingBytes];
};

// A message of several pieces uses all cells of the ring, so neither side waits for the other at
// every piece. At most kEagerMessages messages may start before the receiver takes the first, and a
// send of several pieces ends only after its receive has begun. A program with unmatched sends thus
// blocks early.
//
// In a long message a side signals every kSignalledCells cells. Each signal takes a cache line from
// the peer, which polls it. With more cells per signal the two sides would not work at the same
// time.
inline constexpr uint32_t kCells = 16;  // a power of two
inline constexpr uint32_t kEagerMessages = 4;
inline constexpr uint32_t kSignalledCells = 4;
inline constexpr size_t kCellBytes = size_t{8} << 10;

// How a message moves: in one cell, by a read of the sender's buffer, or in several cells.
enum class Transfer : uint32_t { Eager, Direct, Pieces };

// One piece of a message.
struct Cell {
  uint64_t count;
  uint64_t address;  // Direct: of the sender's buffer
  uint64_t windows;  // Direct: WindowSet::identity() of the sender
  uint32_t dtype;
  Transfer transfer;
  alignas(64) unsigned char payload[kCellBytes];
};

// A signal of captured operations in strict mode. As in NCCL, at most one is in transit.
struct CapturedSignal {
  Flag given;
  Flag taken;
};

// One direction between two ranks: a ring of messages, and per signal a flag that counts how often
// it was signalled.
struct alignas(4096) PairRing {
  alignas(128) Flag posted;  // cells that the sender has filled
  alignas(128) Flag taken;   // cells that the receiver has emptied
  Flag sender_called;        // in strict mode, 1: it has called ncclSend
  Flag receiver_called;      // ncclRecv
  alignas(128) Cell cells[kCells];
  alignas(128) Flag signals[kMaxSignals];
  alignas(128) CapturedSignal captured_signals[kMaxSignals];
};

// The tuning that rank 0 publishes, before it signals step 1 or after a calibration.
struct TuningRecord {
  enum State : uint32_t { Wanted, Measured, Defaults };
  State state;
  Measurements measured;
};

// State shared by all ranks: the secret of this world, from which the keys of derived communicators
// are computed, the tuning, the outcome of the setup, the last decided recovery, and the first
// failure of any rank.
struct alignas(4096) Header {
  Secret secret;
  alignas(128) Flag tuned;
  TuningRecord tuning;  // complete when tuned is 1
  enum Setup : uint32_t { Open, Complete, GivenUp };
  std::atomic<uint32_t> setup;
  std::atomic<uint64_t> recovery;  // its number << 32 | the rank whose proposal was accepted
  enum Failure : uint32_t { None, Writing, Written };
  std::atomic<uint32_t> failure;
  ErrorRecord<2048> error;
};

}  // namespace hostnccl
