// The path without copies in between: every source publishes its addresses, every receiver reads
// from there, and a source returns when all who read from it are done. An all-reduce takes one step
// more: each rank reduces one slice into its receive buffer, from where the others fetch it.
#include <algorithm>
#include <cstring>

#include "hostnccl/operations/collective_paths.h"
#include "hostnccl/segment/peer_memory.h"

namespace hostnccl {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;  // of one peer: all of them stay in the cache
constexpr size_t kSliceAlignment = 64;              // elements

struct Pull : Call {
  const std::shared_ptr<const WindowSet> windows;  // may be null

  Pull(Communicator& communicator, const Operation& called, std::shared_ptr<const WindowSet> open)
      : Call(communicator, called), windows(std::move(open)) {}

  AccessEpoch start_access() const { return AccessEpoch(segment, rank, windows.get()); }

  // Reduces count elements that begin at an offset in everybody's send buffer.
  void reduce_from_all(size_t offset, void* to, size_t count) const {
    const AccessEpoch access = start_access();
    const size_t most = kScratchBytes / element;
    for (size_t done = 0; done < count; done += most) {
      const size_t now = std::min(most, count - done);
      const size_t start = offset + done * element;
      for (int peer = 0; peer < nranks; ++peer) {
        comm.sources()[peer] = peer == rank
                                   ? static_cast<const char*>(operation.send) + start
                                   : access.view(peer, comm.descriptor_of(peer).send + start,
                                                 comm.scratch(peer, kScratchBytes), now * element);
      }
      reduce_into(static_cast<char*>(to) + done * element, now);
      access.check();
    }
    access.finish();
  }

  void copy_from_all() const {
    const AccessEpoch access = start_access();
    for (int step = 0; step < nranks; ++step) {
      const int peer = (rank + step) % nranks;  // not all at the same one
      if (!takes_from(peer)) continue;
      if (peer == rank) {
        copy_own_block(0, operation.block_bytes());
      } else {
        access.read(peer, comm.descriptor_of(peer).send + offset_in_send(rank),
                    recv_at(offset_in_recv(peer)), operation.block_bytes());
      }
    }
    access.finish();
  }

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
    for (int step = 1; step < nranks; ++step) {
      const int owner = (rank + step) % nranks;
      const auto [begin, length] = slice_of(owner);
      access.read(owner, comm.descriptor_of(owner).recv + begin * element, recv_at(begin * element),
                  length * element);
    }
    access.finish();
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
                std::shared_ptr<const WindowSet> windows, bool anywhere) {
  const Pull call(comm, operation, std::move(windows));
  bool reachable = true;
  ExposureEpoch exposure(call.segment, call.rank);
  try {
    Descriptor own = describe(operation);
    own.windows = anywhere ? 0 : call.windows->identity();
    comm.next_staging();
    comm.own_descriptor() = own;
    uint32_t step = comm.signal_step();
    for (int peer = 0; peer < call.nranks; ++peer) {
      co_await until(comm.step_of(peer), step, peer);
      if (call.meet(peer, own).windows != own.windows) reachable = false;
    }
    if (!reachable) {
      Task staged = run_staged(comm, operation);
      while (!staged.resume()) co_await Until{staged.blocked()};
      exposure.close();
      co_return;
    }
    if (operation.kind == Kind::AllReduce) {
      call.reduce_own_slice();
      step = comm.signal_step();
      for (int peer = 0; peer < call.nranks; ++peer) {
        co_await until(comm.step_of(peer), step, peer);
      }
      call.fetch_slices();
    } else if (call.receives()) {
      call.receive();
    }
    step = comm.signal_step();
    for (int peer = 0; peer < call.nranks && call.sends(); ++peer) {
      if (call.gives_to(peer)) co_await until(comm.step_of(peer), step, peer);
    }
  } catch (...) {
    comm.fail(current_error());  // before exposure ends: see there
    throw;
  }
  exposure.close();
}

}  // namespace hostnccl
