#include "hostnccl/communicator/connections.h"

#include <cstdlib>
#include <string_view>

#include "hostnccl/base/interrupt.h"
#include "hostnccl/communicator/deadlock.h"

namespace hostnccl {
namespace {

bool connects_at_creation() {
  const char* text = std::getenv("NCCL_RUNTIME_CONNECT");
  return text != nullptr && std::string_view(text) == "0";
}

void sleep_until_met(const Communicator& comm, const Wait& wait) {
  SpinBackoff backoff(comm.segment().oversubscribed());
  while (!wait.condition.met())
    if (!backoff.wait()) break;
  if (wait.condition.met()) return;
  const Sleeping sleeping(wait);
  sleep_until(wait.condition, [&](bool check_liveness) {
    comm.state().check_wait({wait.condition, wait.peer}, check_liveness);
    if (const auto reason = interruption())
      throw Error(reason->code(), comm.segment().name_of(comm.rank()) + " " + reason->text());
    if (const auto deadlock = Deadlocks::check()) throw Error(*deadlock);
  });
}

}  // namespace

std::vector<Wait> begin_connecting(const Communicator& comm, const Operation& operation) {
  Segment& segment = comm.segment();
  const int rank = comm.rank();
  const int peer = operation.root_or_peer;
  std::vector<Wait> waits;
  if (is_message(operation.kind)) {
    const bool sends = operation.kind == Kind::Send;
    PairRing& ring = sends ? segment.pair_ring(rank, peer) : segment.pair_ring(peer, rank);
    Flag& own = sends ? ring.sender_called : ring.receiver_called;
    Flag& other = sends ? ring.receiver_called : ring.sender_called;
    if (peer == rank || own.load_own() != 0) return waits;
    own.signal(1);
    waits.push_back({{&other, 1}, &comm, peer, operation});
  } else if (Flag& own = segment.rank_state(rank).called;
             is_collective(operation.kind) && own.load_own() == 0) {
    own.signal(1);
    if (connects_at_creation()) return waits;
    for (int other = 0; other < comm.nranks(); ++other)
      if (other != rank)
        waits.push_back({{&segment.rank_state(other).called, 1}, &comm, other, operation});
  }
  return waits;
}

void wait_until_connected(Communicator& comm, const std::vector<Wait>& waits) {
  try {
    for (const Wait& one : waits) sleep_until_met(comm, one);
  } catch (...) {
    const Error error = current_error();
    comm.state().fail(error);
    comm.note_failure(comm.state().for_others(error));
    throw comm.state().operation_error();
  }
}

}  // namespace hostnccl
