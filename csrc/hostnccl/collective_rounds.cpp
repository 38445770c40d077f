// The path through the slots: each round, every source fills its slot, and when all have, every
// receiver takes what is for it from all slots. One step a round; small calls are one round.
//
// A large all-reduce takes a second step: each rank reduces one slice of the round in its own slot,
// where the others then find it, so that nothing is reduced twice.
#include <algorithm>
#include <cstring>

#include "hostnccl/collective_paths.h"

namespace hostnccl {
namespace {

constexpr size_t kReduceAllBytes = size_t{8} << 10;  // up to here every rank reduces everything
constexpr size_t kAligned = 64;                      // elements, so that chunks start aligned

size_t round_down(size_t count) { return count < kAligned ? count : count / kAligned * kAligned; }

struct Rounds : Call {
  const size_t chunk;  // elements of a block that go into one round
  const bool sliced;

  Rounds(Communicator& communicator, const Operation& called)
      : Call(communicator, called),
        chunk(round_down(kSlotBytes / static_cast<size_t>(blocks()) / element)),
        sliced(called.kind == Kind::AllReduce && called.block_bytes() > kReduceAllBytes) {}

  unsigned char* slot_of(int peer) const { return world.lane(peer).slots[comm.turn() & 1]; }

  const void* in_slot(int source) const {
    const size_t block = shape.block_per_destination ? static_cast<size_t>(rank) : 0;
    return slot_of(source) + block * chunk * element;
  }

  void fill(size_t from, size_t count) const {
    if (!sends()) return;
    const char* send = static_cast<const char*>(operation.send) + from * element;
    unsigned char* slot = slot_of(rank);
    for (int block = 0; block < blocks(); ++block) {
      std::memcpy(slot + static_cast<size_t>(block) * chunk * element, send + offset_in_send(block),
                  count * element);
    }
  }

  void take(size_t from, size_t count) const {
    if (!receives()) return;
    const size_t start = from * element;
    if (shape.reduces) {
      for (int peer = 0; peer < nranks; ++peer) comm.sources()[peer] = in_slot(peer);
      reduce_into(recv_at(start), count);
      return;
    }
    for (int peer = 0; peer < nranks; ++peer) {
      if (!takes_from(peer)) continue;
      std::memcpy(recv_at(offset_in_recv(peer) + start), in_slot(peer), count * element);
    }
  }

  // The slice of count elements that a rank reduces.
  std::pair<size_t, size_t> slice_of(int owner, size_t count) const {
    const size_t share = (count + static_cast<size_t>(nranks) - 1) / static_cast<size_t>(nranks);
    const size_t begin = std::min(count, share * static_cast<size_t>(owner));
    return {begin, std::min(count, begin + share) - begin};
  }

  void reduce_own_slice(size_t count) const {
    const auto [begin, length] = slice_of(rank, count);
    if (length == 0) return;
    for (int peer = 0; peer < nranks; ++peer) {
      comm.sources()[peer] = slot_of(peer) + begin * element;
    }
    reduce_into(slot_of(rank) + begin * element, length);
  }

  void take_slices(size_t from, size_t count) const {
    for (int owner = 0; owner < nranks; ++owner) {
      const auto [begin, length] = slice_of(owner, count);
      if (length == 0) break;
      std::memcpy(recv_at((from + begin) * element), slot_of(owner) + begin * element,
                  length * element);
    }
  }
};

}  // namespace

Task run_in_rounds(Communicator& comm, const Operation& operation) {
  const Rounds call(comm, operation);
  const Descriptor own = describe(operation);
  for (size_t from = 0; from < operation.count; from += call.chunk) {
    const size_t count = std::min(call.chunk, operation.count - from);
    comm.next_turn();
    call.fill(from, count);
    if (from == 0) comm.own_descriptor() = own;
    uint32_t step = comm.raise_stage();
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(comm.stage_of(peer), step, peer);
      if (from == 0) call.meet(peer, own);
    }
    if (!call.sliced) {
      call.take(from, count);
      continue;
    }
    call.reduce_own_slice(count);
    step = comm.raise_stage();
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(comm.stage_of(peer), step, peer);
    }
    call.take_slices(from, count);
  }
}

}  // namespace hostnccl
