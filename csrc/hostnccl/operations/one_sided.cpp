#include "hostnccl/operations/one_sided.h"

#include <cstring>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

// A rank's operations run one launch at a time, so its signals have one writer, and whoever sees a
// signal sees all that this rank has written before.
Task run_put(Communicator& comm, const Operation& operation) {
  const size_t bytes = operation.block_bytes();
  if (bytes != 0) std::memmove(operation.recv, operation.send, bytes);
  Flag& given = comm.segment().pair_ring(comm.rank(), operation.root).signals[operation.signal];
  given.signal(given.load_own() + 1);
  co_return;
}

Task run_wait(Communicator& comm, const Operation& operation) {
  const int peer = operation.root;
  Flag& given = comm.segment().pair_ring(peer, comm.rank()).signals[operation.signal];
  uint32_t& taken = comm.signals_taken(peer, operation.signal);
  const uint32_t target = taken + static_cast<uint32_t>(operation.count);
  co_await until(given, target, peer);
  taken = target;
}

}  // namespace hostnccl
