#include "hostnccl/operations/one_sided.h"

#include <cstring>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

// Operations of a rank run in order, so each signal flag has a single writer. A rank that sees a
// signal sees everything that the signalling rank has written before it.
Task run_put(Communicator& comm, const Operation& operation) {
  const size_t bytes = operation.block_bytes();
  if (bytes != 0) std::memmove(operation.recv, operation.send, bytes);
  PairRing& ring = comm.segment().pair_ring(comm.rank(), operation.root_or_peer);
  Flag& flag = ring.signals[operation.signal];
  flag.signal(flag.load_own() + 1);
  co_return;
}

Task run_wait(Communicator& comm, const Operation& operation) {
  const int peer = operation.root_or_peer;
  Flag& flag = comm.segment().pair_ring(peer, comm.rank()).signals[operation.signal];
  const uint32_t target = comm.consumed_signals().count(peer, operation.signal) +
                          static_cast<uint32_t>(operation.count);
  co_await until(flag, target, peer);
  comm.consumed_signals().count(peer, operation.signal) = target;
}

}  // namespace hostnccl
