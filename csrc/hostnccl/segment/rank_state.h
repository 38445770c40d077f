// What ranks share: one RankState per rank, one PairRing per ordered pair of ranks, one Header.
// These are the layouts in memory; Segment lays them out. All of it starts as zeros, and pages that
// nobody touches never exist.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hostnccl/base/flag.h"
#include "hostnccl/base/unique_id.h"
#include "hostnccl/kernels/reduce.h"

namespace hostnccl {

inline constexpr uint32_t kProtocol = 2;  // of the rendezvous and of everything in this file
inline constexpr int kMaxRanks = 1024;
inline constexpr size_t kStagingBytes = size_t{256} << 10;

// Revoked and Shrunk: there, but no longer for operations.
enum class Presence : uint32_t { Absent, Alive, Left, Aborted, Revoked, Shrunk };

// One collective call as its rank made it.
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
  uint64_t tag;      // says nothing about the call but to people
  uint64_t windows;  // the set of windows of which some hold all that others read; 0: none do
};

// Which signals a rank has for each other rank: so many contexts, so many in each of them.
struct SignalRange {
  uint32_t contexts = 1;
  uint32_t per_context = 1;
  uint32_t index(uint32_t signal, uint32_t context) const { return context * per_context + signal; }
  friend bool operator==(const SignalRange&, const SignalRange&) = default;
};
inline constexpr uint32_t kMaxSignals = 1024;

// What a rank brings when communicators are made of this one.
struct ExchangeRecord {
  int32_t group;  // split: its color; grow: the new size
  int32_t order;  // split: its key; grow: 1 for the root
  RendezvousName name;
};

// Two descriptors and two staging, used alternately: a rank fills one for its call k only after
// every rank has published call k-1, and so has done with call k-2. Of the two records the same is
// true; agreements counts them, and goes on when the segment has failed.
struct alignas(4096) RankState {
  alignas(128) Flag step;
  alignas(128) Descriptor descriptors[2];
  alignas(128) Flag agreement_step;
  Flag suspension_step;
  ExchangeRecord records[2];
  alignas(128) std::atomic<Presence> presence;
  std::atomic<uint32_t> access;  // this rank is access another's memory by pointer
  int32_t pid;
  uint64_t start;
  uint64_t probe;  // address of a word with a known value in the owner's memory
  cpu_set_t cpus;  // that this rank may run on
  std::atomic<uint64_t> direct_threshold;  // bytes from which on this rank would read directly
  SignalRange signals;
  alignas(4096) unsigned char staging_buffers[2][kStagingBytes];
};

// A message's pieces use all cells of the ring, so that neither side waits for the other at every
// piece. No more than kEagerMessages may begin before the first of them is taken, and a message of
// several pieces ends only then: a sender that is wrong about its messages is not to get far.
inline constexpr uint32_t kCells = 16;  // a power of two
inline constexpr uint32_t kEagerMessages = 4;
inline constexpr size_t kCellBytes = size_t{8} << 10;

enum class Transfer : uint32_t { Eager, Direct, Pieces };

struct Cell {
  uint64_t count;
  uint64_t address;  // Direct: where the receiver reads it
  uint32_t dtype;
  Transfer transfer;
  alignas(64) unsigned char payload[kCellBytes];
};

// From one rank to another: a ring of messages, and how often each signal was given.
struct alignas(4096) PairRing {
  alignas(128) Flag posted;
  alignas(128) Flag taken;
  alignas(128) Cell cells[kCells];
  alignas(128) Flag signals[kMaxSignals];
};

struct alignas(4096) Header {
  enum Failing : uint32_t { None, Writing, Written };
  std::atomic<uint32_t> failing;
  uint32_t code;
  char text[2048];
};

}  // namespace hostnccl
