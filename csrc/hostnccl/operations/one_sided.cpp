#include <cstring>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/operations/tasks.h"

namespace hostnccl {
namespace {

// NCCL counts the signals of graphs separately, with at most one in transit per graph.
bool counts_separately(const Communicator& comm, const Operation& operation) {
  return operation.captured && comm.settings().strict;
}

}  // namespace

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
