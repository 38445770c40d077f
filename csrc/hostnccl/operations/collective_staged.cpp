// The staged path of a collective: data is copied through the staging buffers of the segment.
//
// In each round every source fills its staging buffer and signals a step. When all have done so,
// every receiver reads its data from the staging buffers. A small call is one round.
//
// A large reduction has a second step per round: each rank reduces one slice of the round in its
// own staging buffer, from which the receivers read it. Every element is reduced once, and all
// ranks share the work.
#include <algorithm>
#include <cstring>

#include "hostnccl/kernels/copy.h"
#include "hostnccl/operations/collective.h"

namespace hostnccl {
namespace {

// Sizes up to which the second step costs more than it saves. Without it, every rank of an
// all-reduce reduces everything: its limit applies to the contributions of all ranks. In a reduce
// only the root reduces: the limit applies to one contribution.
constexpr size_t kUnslicedAllReduceBytes = size_t{64} << 10;
constexpr size_t kUnslicedReduceBytes = size_t{128} << 10;
constexpr size_t kAligned = 64;  // elements to which chunks are aligned

struct StagedCall : CollectiveCall {
  const size_t chunk;  // elements of a block per round
  const bool sliced;   // with the second step

  StagedCall(Communicator& communicator, const Operation& called)
      : CollectiveCall(communicator, called),
        chunk(staged_chunk(called, nranks)),
        sliced(is_sliced()) {}

  bool is_sliced() const {
    const size_t bytes = operation.block_bytes();
    if (operation.kind == Kind::Reduce) return nranks > 2 && bytes > kUnslicedReduceBytes;
    return operation.kind == Kind::AllReduce &&
           bytes * static_cast<size_t>(nranks) > kUnslicedAllReduceBytes;
  }

  // The block of a source for this rank, from an element on.
  const void* block_of(int source, size_t from) const {
    if (source == rank) return own_block() + from * element;
    const size_t block = traits.block_per_destination ? static_cast<size_t>(rank) : 0;
    return collective.staging_of(source) + block * chunk * element;
  }

  bool streams(size_t count) const { return count * element >= segment.tuning().stream; }

  // Does not stage the rank's block for itself, which no other rank reads.
  void fill_staging(size_t from, size_t count) const {
    if (!sends()) return;
    const char* send = static_cast<const char*>(operation.send) + from * element;
    unsigned char* staging = collective.staging_of(rank);
    if (sliced) {
      const auto [begin, length] = slice_of(rank, count);
      const size_t end = begin + length;
      stage(staging, send, begin * element, streams(count));
      stage(staging + end * element, send + end * element, (count - end) * element, streams(count));
      return;
    }
    if (traits.only_root_receives && rank == root) return;
    for (int block = 0; block < blocks(); ++block) {
      if (traits.block_per_destination && block == rank) continue;
      stage(staging + static_cast<size_t>(block) * chunk * element, send + offset_in_send(block),
            count * element, streams(count));
    }
  }

  void read_staging(size_t from, size_t count) const {
    if (!receives()) return;
    const size_t start = from * element;
    if (traits.reduces) {
      for (int peer = 0; peer < nranks; ++peer) collective.sources()[peer] = block_of(peer, from);
      reduce_into(recv_at(start), count);
      return;
    }
    for (int peer = 0; peer < nranks; ++peer) {
      if (!reads_from(peer)) continue;
      if (peer == rank) {
        copy_own_block(start, count * element);
      } else {
        std::memcpy(recv_at(offset_in_recv(peer) + start), block_of(peer, from), count * element);
      }
    }
  }

  // The slice of a round of count elements that one rank reduces: its first element and its length.
  std::pair<size_t, size_t> slice_of(int owner, size_t count) const {
    const size_t share = (count + static_cast<size_t>(nranks) - 1) / static_cast<size_t>(nranks);
    const size_t begin = std::min(count, share * static_cast<size_t>(owner));
    return {begin, std::min(count, begin + share) - begin};
  }

  void reduce_own_slice(size_t from, size_t count) const {
    const auto [begin, length] = slice_of(rank, count);
    if (length == 0) return;
    for (int peer = 0; peer < nranks; ++peer)
      collective.sources()[peer] = collective.staging_of(peer) + begin * element;
    collective.sources()[rank] = own_block() + (from + begin) * element;
    reduce_into(collective.staging_of(rank) + begin * element, length);
  }

  void read_slices(size_t from, size_t count) const {
    if (!receives()) return;
    for (int owner = 0; owner < nranks; ++owner) {
      const auto [begin, length] = slice_of(owner, count);
      if (length == 0) break;
      std::memcpy(recv_at((from + begin) * element), collective.staging_of(owner) + begin * element,
                  length * element);
    }
  }
};

}  // namespace

size_t staged_chunk(const Operation& operation, int nranks) {
  const int blocks = traits_of(operation.kind).block_per_destination ? nranks : 1;
  const size_t most = kStagingBytes / static_cast<size_t>(blocks) / element_size(operation.dtype);
  return most < kAligned ? most : most / kAligned * kAligned;
}

Task run_staged(Communicator& comm, const Operation& operation) {
  const StagedCall call(comm, operation);
  CollectiveState& collective = call.collective;
  const Descriptor own = describe(operation);
  bool checked = false;
  // A call without elements has one round, in which the ranks compare their calls.
  for (size_t from = 0; from == 0 || from < operation.count;) {
    const size_t count = std::min(call.chunk, operation.count - from);
    collective.next_staging();
    if (count != 0) call.fill_staging(from, count);
    if (from == 0) collective.own_descriptor() = own;
    uint32_t step = collective.signal_step();
    bool all_staged = true;
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(collective.step_of(peer), step, peer);
      if (checked) continue;
      if (call.check_descriptor(peer, own).windows != 0) all_staged = false;
    }
    checked = true;
    // A peer that tried the direct path has seen this descriptor and falls back: repeat the round.
    if (!all_staged) continue;
    if (count == 0) co_return;
    if (!call.sliced) {
      call.read_staging(from, count);
    } else {
      call.reduce_own_slice(from, count);
      step = collective.signal_step();
      for (int peer = 0; peer < call.nranks; ++peer) {
        co_await until(collective.step_of(peer), step, peer);
      }
      call.read_slices(from, count);
    }
    from += call.chunk;
  }
}

}  // namespace hostnccl
