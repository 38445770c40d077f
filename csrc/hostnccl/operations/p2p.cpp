// Messages between two ranks, and one-sided operations.
#include <algorithm>
#include <cstring>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/kernels/copy.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/segment/peer_memory.h"

namespace hostnccl {
namespace {

Cell& cell_of(PairRing& ring, uint32_t number) { return ring.cells[number % kCells]; }

Transfer transfer_for(const Segment& segment, int peer, size_t bytes, bool alone) {
  if (bytes <= kCellBytes) return Transfer::Eager;
  if (!segment.supports_direct()) return Transfer::Pieces;
  const Tuning& tuning = segment.tuning();
  const bool in_process = segment.same_process(peer);
  if (bytes >= tuning.direct_message(in_process, alone)) return Transfer::Direct;
  if (in_process) return Transfer::Pieces;
  // A wake-up takes long while other processes compete for the CPUs. Pieces need one for each fill
  // of the ring, if the ranks do not run at the same time.
  const bool share = segment.competing_ranks() > 0;
  const bool avoids_wakeups = bytes >= tuning.message_contended[share] &&
                              (share ? others_ran_recently() : lost_slice_recently());
  return avoids_wakeups ? Transfer::Direct : Transfer::Pieces;
}

void check_match(const Communicator& comm, const Operation& recv, const Cell& cell) {
  if (cell.count == recv.count && cell.dtype == recv.dtype) return;
  fail(abi::ncclInvalidUsage, "rank %d sends %llu x %s to rank %d, which receives %zu x %s",
       recv.root_or_peer, static_cast<unsigned long long>(cell.count), dtype_name(cell.dtype),
       comm.rank(), recv.count, dtype_name(recv.dtype));
}

// NCCL counts the signals of graphs separately, with at most one in transit per graph.
bool counts_separately(const Communicator& comm, const Operation& operation) {
  return operation.captured && comm.settings().strict;
}

}  // namespace

Task run_send(Communicator& comm, const Operation& operation, bool alone) {
  Segment& segment = comm.segment();
  const int peer = operation.root_or_peer;
  PairRing& ring = segment.pair_ring(comm.rank(), peer);
  const size_t bytes = operation.block_bytes();
  uint32_t number = ring.posted.load_own();
  const uint32_t begun = number;
  co_await until(ring.taken, number + 1 - kEagerMessages, peer);

  Cell& first = cell_of(ring, number);
  first.count = operation.count;
  first.dtype = operation.dtype;
  first.transfer = transfer_for(segment, peer, bytes, alone);
  if (first.transfer == Transfer::Direct) {
    first.address = reinterpret_cast<uint64_t>(operation.send);
    first.windows = comm.windows().any() ? comm.windows().open_set()->identity() : 0;
    ExposureEpoch exposure(segment, comm.rank());
    ring.posted.signal(number + 1);
    co_await until(ring.taken, number + 1, peer);
    exposure.close();
    co_return;
  }
  const char* from = static_cast<const char*>(operation.send);
  const bool streams = bytes >= segment.tuning().stream;
  for (size_t done = 0;;) {
    const size_t piece = std::min(kCellBytes, bytes - done);
    if (piece != 0) stage(cell_of(ring, number).payload, from + done, piece, streams);
    ++number;
    done += piece;
    const bool full = !ring.taken.reached(number + 1 - kCells);
    if (full || done == bytes || number % kSignalledCells == 0) ring.posted.signal(number);
    if (done == bytes) break;
    if (full) co_await until(ring.taken, number + 1 - kCells, peer);
  }
  // A message of several pieces ends only when its receive has begun, even if the ring can store
  // all pieces: a send without a receive must block, as in NCCL.
  if (bytes > kCellBytes) co_await until(ring.taken, begun + 1, peer);
}

Task run_recv(Communicator& comm, const Operation& operation) {
  Segment& segment = comm.segment();
  const int peer = operation.root_or_peer;
  PairRing& ring = segment.pair_ring(peer, comm.rank());
  const size_t bytes = operation.block_bytes();
  uint32_t number = ring.taken.load_own();
  co_await until(ring.posted, number + 1, peer);

  const Cell& first = cell_of(ring, number);
  check_match(comm, operation, first);
  if (first.transfer == Transfer::Direct) {
    {
      const auto windows = comm.windows().open_set();
      const AccessEpoch access(segment, comm.rank(), windows.get());
      access.read(peer, first.windows, first.address, operation.recv, bytes);
      access.check();
    }
    ring.taken.signal(number + 1);
    co_return;
  }
  char* to = static_cast<char*>(operation.recv);
  for (size_t done = 0;;) {
    const size_t piece = std::min(kCellBytes, bytes - done);
    if (piece != 0) std::memcpy(to + done, cell_of(ring, number).payload, piece);
    ++number;
    done += piece;
    const bool empty = !ring.posted.reached(number + 1);
    if (empty || done == bytes || number % kSignalledCells == 0) ring.taken.signal(number);
    if (done == bytes) break;
    if (empty) co_await until(ring.posted, number + 1, peer);
  }
}

// Operations of a rank run in order, so each signal flag has a single writer. A rank that sees a
// signal also sees everything that the signalling rank wrote before it.
Task run_put(Communicator& comm, const Operation& operation) {
  PairRing& ring = comm.segment().pair_ring(comm.rank(), operation.root_or_peer);
  const bool captured = counts_separately(comm, operation);
  CapturedSignal& separate = ring.captured_signals[operation.signal];
  Flag& flag = captured ? separate.given : ring.signals[operation.signal];
  if (captured) co_await until(separate.taken, flag.load_own(), operation.root_or_peer);
  const size_t bytes = operation.block_bytes();
  if (bytes != 0) std::memmove(operation.recv, operation.send, bytes);
  flag.signal(flag.load_own() + 1);
  co_return;
}

Task run_wait(Communicator& comm, const Operation& operation) {
  const int peer = operation.root_or_peer;
  PairRing& ring = comm.segment().pair_ring(peer, comm.rank());
  if (counts_separately(comm, operation)) {
    CapturedSignal& separate = ring.captured_signals[operation.signal];
    for (size_t i = 0; i < operation.count; ++i) {
      const uint32_t next = separate.taken.load_own() + 1;
      co_await until(separate.given, next, peer);
      separate.taken.signal(next);
    }
    co_return;
  }
  Flag& flag = ring.signals[operation.signal];
  const uint32_t target = comm.consumed_signals().count(peer, operation.signal) +
                          static_cast<uint32_t>(operation.count);
  co_await until(flag, target, peer);
  comm.consumed_signals().count(peer, operation.signal) = target;
}

}  // namespace hostnccl
