// The path through the staging: each round, every source fills its staging, and when all have,
// every receiver takes what is for it from all staging. One step a round; small calls are one
// round.
//
// A large reduction takes a second step: each rank reduces one slice of the round in its own
// staging, where those who receive then find it, so that nothing is reduced twice, and all reduce.
#include <algorithm>
#include <cstring>

#include "hostnccl/operations/collective_paths.h"

namespace hostnccl {
namespace {

// Up to here a second step costs more than it saves: of all ranks' contributions to an all-reduce,
// which every rank then reduces, and of one to a reduce, which the root reduces alone.
constexpr size_t kReduceAllBytes = size_t{64} << 10;
constexpr size_t kReduceAloneBytes = size_t{128} << 10;
constexpr size_t kAligned = 64;  // elements, so that chunks start aligned

size_t round_down(size_t count) { return count < kAligned ? count : count / kAligned * kAligned; }

struct Staged : Call {
  const size_t chunk;  // elements of a block that go into one round
  const bool sliced;

  Staged(Communicator& communicator, const Operation& called)
      : Call(communicator, called),
        chunk(round_down(kStagingBytes / static_cast<size_t>(blocks()) / element)),
        sliced(is_sliced()) {}

  bool is_sliced() const {
    const size_t bytes = operation.block_bytes();
    if (operation.kind == Kind::Reduce) return nranks > 2 && bytes > kReduceAloneBytes;
    return operation.kind == Kind::AllReduce &&
           bytes * static_cast<size_t>(nranks) > kReduceAllBytes;
  }

  unsigned char* staging_of(int peer) const {
    return segment.rank_state(peer).staging_buffers[comm.staging_index() & 1];
  }

  // What a source has for this rank, from an element on.
  const void* block_of(int source, size_t from) const {
    if (source == rank) return own_block() + from * element;
    const size_t block = traits.block_per_destination ? static_cast<size_t>(rank) : 0;
    return staging_of(source) + block * chunk * element;
  }

  // Nobody takes a rank's own block out of its staging.
  void fill(size_t from, size_t count) const {
    if (!sends()) return;
    const char* send = static_cast<const char*>(operation.send) + from * element;
    unsigned char* staging = staging_of(rank);
    if (sliced) {
      const auto [begin, length] = slice_of(rank, count);
      const size_t end = begin + length;
      std::memcpy(staging, send, begin * element);
      std::memcpy(staging + end * element, send + end * element, (count - end) * element);
      return;
    }
    if (traits.only_root_receives && rank == operation.root) return;
    for (int block = 0; block < blocks(); ++block) {
      if (traits.block_per_destination && block == rank) continue;
      std::memcpy(staging + static_cast<size_t>(block) * chunk * element,
                  send + offset_in_send(block), count * element);
    }
  }

  void take(size_t from, size_t count) const {
    if (!receives()) return;
    const size_t start = from * element;
    if (traits.reduces) {
      for (int peer = 0; peer < nranks; ++peer) comm.sources()[peer] = block_of(peer, from);
      reduce_into(recv_at(start), count);
      return;
    }
    for (int peer = 0; peer < nranks; ++peer) {
      if (!takes_from(peer)) continue;
      if (peer == rank) {
        copy_own_block(start, count * element);
      } else {
        std::memcpy(recv_at(offset_in_recv(peer) + start), block_of(peer, from), count * element);
      }
    }
  }

  // The slice of count elements that a rank reduces.
  std::pair<size_t, size_t> slice_of(int owner, size_t count) const {
    const size_t share = (count + static_cast<size_t>(nranks) - 1) / static_cast<size_t>(nranks);
    const size_t begin = std::min(count, share * static_cast<size_t>(owner));
    return {begin, std::min(count, begin + share) - begin};
  }

  void reduce_own_slice(size_t from, size_t count) const {
    const auto [begin, length] = slice_of(rank, count);
    if (length == 0) return;
    for (int peer = 0; peer < nranks; ++peer)
      comm.sources()[peer] = staging_of(peer) + begin * element;
    comm.sources()[rank] = own_block() + (from + begin) * element;
    reduce_into(staging_of(rank) + begin * element, length);
  }

  void take_slices(size_t from, size_t count) const {
    if (!receives()) return;
    for (int owner = 0; owner < nranks; ++owner) {
      const auto [begin, length] = slice_of(owner, count);
      if (length == 0) break;
      std::memcpy(recv_at((from + begin) * element), staging_of(owner) + begin * element,
                  length * element);
    }
  }
};

}  // namespace

Task run_staged(Communicator& comm, const Operation& operation) {
  const Staged call(comm, operation);
  const Descriptor own = describe(operation);
  bool met = false;
  for (size_t from = 0; from < operation.count;) {
    const size_t count = std::min(call.chunk, operation.count - from);
    comm.next_staging();
    call.fill(from, count);
    if (from == 0) comm.own_descriptor() = own;
    uint32_t step = comm.signal_step();
    bool filled = true;
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(comm.step_of(peer), step, peer);
      if (met) continue;
      if (call.meet(peer, own).windows != 0) filled = false;
    }
    met = true;
    if (!filled) continue;  // who took it that all lies in windows knows better now: see run_direct
    if (!call.sliced) {
      call.take(from, count);
    } else {
      call.reduce_own_slice(from, count);
      step = comm.signal_step();
      for (int peer = 0; peer < call.nranks; ++peer) {
        co_await until(comm.step_of(peer), step, peer);
      }
      call.take_slices(from, count);
    }
    from += call.chunk;
  }
}

}  // namespace hostnccl
