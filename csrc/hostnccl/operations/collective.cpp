// All ranks choose the path of a collective by values that are equal on all of them. The exceptions
// are published: that a rank's data lie in windows, and the choice of a root in chooses_direct().
//
// The staged path copies data through the staging buffers of the segment. In each round every
// source fills its staging buffer and signals a step. When all have done so, every receiver reads
// its data from the staging buffers. A small call is one round. A large reduction has a second step
// per round: each rank reduces one slice of the round in its own staging buffer, from which the
// receivers read it. Every element is reduced once, and all ranks share the work.
//
// On the direct path receivers read the sources' buffers without an intermediate copy. Every source
// publishes the addresses of its buffers, every receiver reads from them, and a source returns when
// all its readers are done. An all-reduce has another step: each rank reduces one slice into its
// receive buffer, from which the others fetch it.
#include "hostnccl/operations/collective.h"

#include <algorithm>
#include <cstring>

#include "hostnccl/kernels/copy.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/segment/peer_memory.h"

namespace hostnccl {
namespace {

constexpr size_t kBeyondCaches = size_t{4} << 20;  // bytes. A larger copy evicts itself

// The two steps of a large reduction cost more than they save up to these sizes. Without the second
// step, every rank of an all-reduce reduces everything: its limit applies to the contributions of
// all ranks. In a reduce only the root reduces: the limit applies to one contribution.
constexpr size_t kUnslicedAllReduceBytes = size_t{64} << 10;
constexpr size_t kUnslicedReduceBytes = size_t{128} << 10;

constexpr size_t kScratchBytes = size_t{64} << 10;  // per peer: those of all peers fit in a cache
constexpr size_t kAligned = 64;  // elements to which chunks and slices are aligned

// One collective call on one rank: the roles of the ranks and the layout of the blocks.
struct CollectiveCall {
  Communicator& comm;
  CollectiveState& collective;
  Segment& segment;
  const Operation& operation;
  const CollectiveTraits& traits;
  const int rank;
  const int nranks;
  const int root;
  const size_t element;  // bytes

  CollectiveCall(Communicator& communicator, const Operation& called)
      : comm(communicator),
        collective(communicator.collective()),
        segment(communicator.segment()),
        operation(called),
        traits(traits_of(called.kind)),
        rank(communicator.rank()),
        nranks(communicator.nranks()),
        root(called.root_or_peer),
        element(element_size(called.dtype)) {}

  bool sends() const { return !traits.only_root_sends || rank == root; }
  bool receives() const { return !traits.only_root_receives || rank == root; }
  bool reads_from(int peer) const { return !traits.only_root_sends || peer == root; }
  bool is_read_by(int peer) const { return !traits.only_root_receives || peer == root; }
  int blocks() const { return traits.block_per_destination ? nranks : 1; }  // in a contribution

  // Byte offsets of a block: in its source's send buffer, in this rank's receive buffer.
  size_t offset_in_send(int destination) const {
    return traits.block_per_destination ? static_cast<size_t>(destination) * operation.block_bytes()
                                        : 0;
  }
  size_t offset_in_recv(int source) const {
    return traits.reduces || traits.only_root_sends
               ? 0
               : static_cast<size_t>(source) * operation.block_bytes();
  }
  const char* send_at(size_t offset) const {
    return static_cast<const char*>(operation.send) + offset;
  }
  char* recv_at(size_t offset) const { return static_cast<char*>(operation.recv) + offset; }
  const char* own_block() const { return send_at(offset_in_send(rank)); }  // for this rank itself

  // The call that a peer has published. Throws if it does not match own.
  const Descriptor& check_descriptor(int peer, const Descriptor& own) const {
    const Descriptor& other = collective.descriptor_of(peer);
    if (!same_call(other, own)) {
      fail(abi::ncclInvalidUsage, "the ranks make different calls: %s calls %s, %s calls %s",
           segment.name_of(rank).c_str(), to_text(own).c_str(), segment.name_of(peer).c_str(),
           to_text(other).c_str());
    }
    collective.scalars()[static_cast<size_t>(peer)] = other.scalar;
    return other;
  }

  void copy_own_block(size_t from, size_t bytes) const {
    char* to = recv_at(offset_in_recv(rank) + from);
    const char* source = own_block() + from;
    if (bytes != 0 && to != source) stage(to, source, bytes, bytes >= kBeyondCaches);
  }

  void reduce_into(void* to, size_t count) const {  // reduces collective.sources()
    const bool multiplies = operation.multiplier.from != Multiplier::From::None;
    reduce(to, collective.sources(), multiplies ? collective.scalars() : nullptr, nranks, count,
           operation.dtype, operation.reduce);
  }

  // The slice of count elements that one rank reduces: its first element and its length.
  std::pair<size_t, size_t> slice_of(int owner, size_t count, size_t aligned) const {
    const size_t even = (count + static_cast<size_t>(nranks) - 1) / static_cast<size_t>(nranks);
    const size_t share = (even + aligned - 1) / aligned * aligned;
    const size_t begin = std::min(count, share * static_cast<size_t>(owner));
    return {begin, std::min(count, begin + share) - begin};
  }

  // Whether peers read only from these windows of this rank.
  bool in_windows(const WindowSet& windows) const {
    const size_t sent = operation.block_bytes() * static_cast<size_t>(blocks());
    const size_t fetched = operation.kind == Kind::AllReduce ? operation.block_bytes() : 0;
    return windows.identity() != 0 && windows.contains(operation.send, sends() ? sent : 0, rank) &&
           windows.contains(operation.recv, fetched, rank);
  }
};

Task run_single_rank(Communicator& comm, const Operation& operation) {
  const CollectiveCall call(comm, operation);
  if (call.traits.reduces) {
    call.collective.sources()[0] = operation.send;
    if (operation.multiplier.from != Multiplier::From::None) {
      call.collective.scalars()[0] = describe(operation).scalar;
    }
    call.reduce_into(operation.recv, operation.count);
  } else {
    call.copy_own_block(0, operation.block_bytes());
  }
  co_return;
}

// A call on the staged path.
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
    const char* send = send_at(from * element);
    unsigned char* staging = collective.staging_of(rank);
    if (sliced) {
      const auto [begin, length] = slice_of(rank, count, 1);
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

  void reduce_own_slice(size_t from, size_t count) const {
    const auto [begin, length] = slice_of(rank, count, 1);
    if (length == 0) return;
    for (int peer = 0; peer < nranks; ++peer)
      collective.sources()[peer] = collective.staging_of(peer) + begin * element;
    collective.sources()[rank] = own_block() + (from + begin) * element;
    reduce_into(collective.staging_of(rank) + begin * element, length);
  }

  void read_slices(size_t from, size_t count) const {
    if (!receives()) return;
    for (int owner = 0; owner < nranks; ++owner) {
      const auto [begin, length] = slice_of(owner, count, 1);
      if (length == 0) break;
      std::memcpy(recv_at((from + begin) * element), collective.staging_of(owner) + begin * element,
                  length * element);
    }
  }
};

// A call on the direct path.
struct DirectCall : CollectiveCall {
  const std::shared_ptr<const WindowSet> windows;  // may be null

  DirectCall(Communicator& communicator, const Operation& called,
             std::shared_ptr<const WindowSet> open)
      : CollectiveCall(communicator, called), windows(std::move(open)) {}

  AccessEpoch start_access() const { return AccessEpoch(segment, rank, windows.get()); }

  // Reduces count elements from a byte offset in every rank's send buffer.
  void reduce_from_all(size_t offset, void* to, size_t count) const {
    const AccessEpoch access = start_access();
    const size_t most = kScratchBytes / element;
    for (size_t done = 0; done < count; done += most) {
      const size_t now = std::min(most, count - done);
      const size_t start = offset + done * element;
      for (int peer = 0; peer < nranks; ++peer) {
        const Descriptor& published = collective.descriptor_of(peer);
        collective.sources()[peer] =
            peer == rank ? send_at(start)
                         : access.view(peer, published.windows, published.send + start,
                                       collective.scratch(peer, kScratchBytes), now * element);
      }
      reduce_into(static_cast<char*>(to) + done * element, now);
      access.check();
    }
  }

  void copy_from_all() const {
    const AccessEpoch access = start_access();
    for (int i = 0; i < nranks; ++i) {
      const int peer = (rank + i) % nranks;  // ranks start at different peers
      if (!reads_from(peer)) continue;
      if (peer == rank) {
        copy_own_block(0, operation.block_bytes());
      } else {
        const Descriptor& published = collective.descriptor_of(peer);
        access.read(peer, published.windows, published.send + offset_in_send(rank),
                    recv_at(offset_in_recv(peer)), operation.block_bytes());
      }
    }
    access.check();
  }

  void reduce_own_slice() const {
    const auto [begin, length] = slice_of(rank, operation.count, kAligned);
    if (length != 0) reduce_from_all(begin * element, recv_at(begin * element), length);
  }

  void fetch_slices() const {
    const AccessEpoch access = start_access();
    for (int i = 1; i < nranks; ++i) {
      const int owner = (rank + i) % nranks;
      const auto [begin, length] = slice_of(owner, operation.count, kAligned);
      const Descriptor& published = collective.descriptor_of(owner);
      access.read(owner, published.windows, published.recv + begin * element,
                  recv_at(begin * element), length * element);
    }
    access.check();
  }

  void receive() const {
    if (traits.reduces) {
      reduce_from_all(offset_in_send(rank), operation.recv, operation.count);
    } else {
      copy_from_all();
    }
  }
};

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
    bool all_staged = true, root_staged = true;
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(collective.step_of(peer), step, peer);
      if (checked) continue;
      const Source source = call.check_descriptor(peer, own).source;
      if (source == Source::Windows) all_staged = false;
      if (source == Source::Memory) root_staged = false;
    }
    checked = true;
    if (!root_staged) {  // see chooses_direct()
      DirectCall(comm, operation, {}).receive();
      collective.signal_step();
      co_return;
    }
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

// Reads the other ranks' buffers directly: through their windows if windows is not null, else by
// pointer within the process or with process_vm_readv. With windows_only, all buffers must lie in
// windows. A rank knows that only of its own buffers. If those of another rank do not, the call
// falls back to the staged path, unless its root has chosen direct reads.
Task run_direct(Communicator& comm, const Operation& operation,
                std::shared_ptr<const WindowSet> windows, bool windows_only) {
  const DirectCall call(comm, operation, std::move(windows));
  CollectiveState& collective = call.collective;
  bool all_in_windows = true, root_chose = false;
  ExposureEpoch exposure(call.segment, call.rank);
  try {
    Descriptor own = describe(operation);
    own.windows = call.windows ? call.windows->identity() : 0;
    own.source = windows_only ? Source::Windows : Source::Memory;
    collective.next_staging();
    collective.own_descriptor() = own;
    uint32_t step = collective.signal_step();
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(collective.step_of(peer), step, peer);
      const Descriptor& other = call.check_descriptor(peer, own);
      if (other.windows != own.windows) all_in_windows = false;
      if (other.source == Source::Memory) root_chose = true;  // see chooses_direct()
    }
    if (windows_only && !all_in_windows && !root_chose) {
      // A peer took the staged path. It repeats the round in which it saw this descriptor, so both
      // begin the first round of the staged path now.
      Task staged = run_staged(comm, operation);
      while (!staged.resume()) co_await Until{staged.blocked()};
      exposure.close();
      co_return;
    }
    if (operation.kind == Kind::AllReduce) {
      call.reduce_own_slice();
      step = collective.signal_step();
      for (int peer = 0; peer < call.nranks; ++peer) {
        co_await until(collective.step_of(peer), step, peer);
      }
      call.fetch_slices();
    } else if (call.receives()) {
      call.receive();
    }
    step = collective.signal_step();
    for (int peer = 0; peer < call.nranks && call.sends(); ++peer) {
      if (call.is_read_by(peer)) co_await until(collective.step_of(peer), step, peer);
    }
  } catch (...) {
    comm.state().fail(current_error());  // before the exposure ends: see ExposureEpoch
    throw;
  }
  exposure.close();
}

}  // namespace

Pattern pattern_of(Kind kind) {
  const CollectiveTraits& traits = traits_of(kind);
  if (traits.reduces) return Pattern::Reduction;
  if (traits.has_root()) return Pattern::Rooted;
  return traits.block_per_destination ? Pattern::Exchange : Pattern::AllGather;
}

size_t contribution_of(const Operation& operation, int nranks) {
  const bool of_all = traits_of(operation.kind).block_per_destination;
  return operation.block_bytes() * (of_all ? static_cast<size_t>(nranks) : 1);
}

Path path_of(const Communicator& comm, const Operation& operation) {
  if (operation.path != Path::Any) return operation.path;
  const size_t direct_from = comm.segment().tuning().direct[size_t(pattern_of(operation.kind))];
  const size_t contribution = contribution_of(operation, comm.nranks());
  return contribution >= direct_from ? Path::Direct : Path::Staged;
}

size_t staged_chunk(const Operation& operation, int nranks) {
  const int blocks = traits_of(operation.kind).block_per_destination ? nranks : 1;
  const size_t most = kStagingBytes / static_cast<size_t>(blocks) / element_size(operation.dtype);
  return most < kAligned ? most : most / kAligned * kAligned;
}

// Whether this rank, the root, lets the others read its memory, which they learn in the first round
// of the staged path. While other processes compete for the CPUs that ranks share, each of the many
// rounds of that path takes long.
bool chooses_direct(const CollectiveCall& call) {
  const Segment& segment = call.segment;
  return call.traits.only_root_sends && call.rank == call.root && segment.competing_ranks() > 0 &&
         segment.supports_direct() && !segment.within_process() && !call.comm.windows().any() &&
         contribution_of(call.operation, call.nranks) >= segment.tuning().rooted_contended &&
         others_ran_recently();
}

Task run_collective(Communicator& comm, const Operation& operation) {
  if (comm.nranks() == 1) return run_single_rank(comm, operation);
  const CollectiveCall call(comm, operation);
  if (operation.path == Path::Staged) return run_staged(comm, operation);
  const bool direct = path_of(comm, operation) == Path::Direct || chooses_direct(call);
  const size_t contribution = contribution_of(operation, comm.nranks());
  if (comm.windows().any() && contribution >= comm.segment().tuning().window) {
    std::shared_ptr<const WindowSet> windows = comm.windows().open_set();
    if (direct || call.in_windows(*windows)) {
      return run_direct(comm, operation, std::move(windows), !direct);
    }
  }
  return direct ? run_direct(comm, operation, {}, false) : run_staged(comm, operation);
}

}  // namespace hostnccl
