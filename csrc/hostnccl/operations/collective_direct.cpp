// The direct path of a collective: receivers read the sources' buffers without an intermediate
// copy.
//
// Every source publishes the addresses of its buffers, every receiver reads from them, and a source
// returns when all its readers are done. An all-reduce has another step: each rank reduces one
// slice into its receive buffer, from which the others fetch it.
#include <algorithm>
#include <cstring>

#include "hostnccl/operations/collective.h"
#include "hostnccl/segment/peer_memory.h"

namespace hostnccl {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;  // per peer: those of all peers fit in a cache
constexpr size_t kSliceAlignment = 64;              // elements

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
        collective.sources()[peer] =
            peer == rank ? static_cast<const char*>(operation.send) + start
                         : access.view(peer, collective.descriptor_of(peer).send + start,
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
        access.read(peer, collective.descriptor_of(peer).send + offset_in_send(rank),
                    recv_at(offset_in_recv(peer)), operation.block_bytes());
      }
    }
    access.check();
  }

  // The slice of an all-reduce that one rank reduces: its first element and its length.
  std::pair<size_t, size_t> slice_of(int owner) const {
    const size_t n = static_cast<size_t>(nranks);
    const size_t even = (operation.count + n - 1) / n;
    const size_t share = (even + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
    const size_t begin = std::min(operation.count, share * static_cast<size_t>(owner));
    return {begin, std::min(operation.count, begin + share) - begin};
  }

  void reduce_own_slice() const {
    const auto [begin, length] = slice_of(rank);
    if (length != 0) reduce_from_all(begin * element, recv_at(begin * element), length);
  }

  void fetch_slices() const {
    const AccessEpoch access = start_access();
    for (int i = 1; i < nranks; ++i) {
      const int owner = (rank + i) % nranks;
      const auto [begin, length] = slice_of(owner);
      access.read(owner, collective.descriptor_of(owner).recv + begin * element,
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

}  // namespace

Task run_direct(Communicator& comm, const Operation& operation,
                std::shared_ptr<const WindowSet> windows, bool windows_only) {
  const DirectCall call(comm, operation, std::move(windows));
  CollectiveState& collective = call.collective;
  bool all_direct = true;
  ExposureEpoch exposure(call.segment, call.rank);
  try {
    Descriptor own = describe(operation);
    own.windows = windows_only ? call.windows->identity() : 0;
    collective.next_staging();
    collective.own_descriptor() = own;
    uint32_t step = collective.signal_step();
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(collective.step_of(peer), step, peer);
      if (call.check_descriptor(peer, own).windows != own.windows) all_direct = false;
    }
    if (!all_direct) {
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

}  // namespace hostnccl
