#include "hostnccl/communicator/connecting.h"

#include <cstdlib>
#include <string_view>

#include "hostnccl/base/interrupt.h"
#include "hostnccl/communicator/deadlock.h"

namespace hostnccl {
namespace {

constexpr auto kConnectionCheckInterval = std::chrono::milliseconds(50);
constexpr int kChecksPerProcessCheck = 4;  // looking at a process costs a system call

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
  for (int checks = 1; !wait.condition.met(); ++checks) {
    sleep_on(wait.condition, kConnectionCheckInterval);
    if (wait.condition.met()) return;
    comm.state().check_wait({wait.condition, wait.peer}, checks % kChecksPerProcessCheck == 0);
    if (const auto reason = interruption())
      throw Error(reason->code(), comm.segment().name_of(comm.rank()) + " " + reason->text());
    if (const auto deadlock = Deadlocks::check()) throw Error(*deadlock);
  }
}

}  // namespace

std::vector<Wait> begin_connecting(Communicator& comm, const Operation& operation) {
  Segment& segment = comm.segment();
  const int rank = comm.rank();
  std::vector<Wait> waits;
  if (is_message(operation.kind)) {
    const int peer = operation.root_or_peer;
    const bool sends = operation.kind == Kind::Send;
    if (peer == rank || !comm.connections().is_first_message(peer, sends)) return waits;
    PairRing& ring = sends ? segment.pair_ring(rank, peer) : segment.pair_ring(peer, rank);
    (sends ? ring.sender_called : ring.receiver_called).signal(1);
    waits.push_back(
        {{sends ? &ring.receiver_called : &ring.sender_called, 1}, &comm, peer, operation});
  } else if (is_collective(operation.kind) && comm.connections().is_first_collective()) {
    segment.rank_state(rank).called.signal(1);
    if (connects_at_creation()) return waits;
    for (int peer = 0; peer < comm.nranks(); ++peer)
      if (peer != rank)
        waits.push_back({{&segment.rank_state(peer).called, 1}, &comm, peer, operation});
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
