#include "hostnccl/p2p.h"

#include <algorithm>
#include <cstring>

#include "hostnccl/communicator.h"
#include "hostnccl/peer_memory.h"
#include "hostnccl/tuning.h"

namespace hostnccl {
namespace {

Cell& cell_of(Channel& channel, uint32_t number) { return channel.cells[number % kCells]; }

Transfer transfer_for(const World& world, int peer, size_t bytes) {
  if (bytes <= kCellBytes) return Transfer::Eager;
  const size_t direct_from = direct_message_bytes(world.same_process(peer), world.crowded());
  return world.direct() && bytes >= direct_from ? Transfer::Direct : Transfer::Pieces;
}

void check_match(const Communicator& comm, const Operation& recv, const Cell& cell) {
  if (cell.count == recv.count && cell.dtype == recv.dtype) return;
  fail(abi::ncclInvalidUsage, "rank %d sends %llu x %s to rank %d, which receives %zu x %s",
       recv.root, static_cast<unsigned long long>(cell.count), dtype_name(cell.dtype), comm.rank(),
       recv.count, dtype_name(recv.dtype));
}

}  // namespace

Task run_send(Communicator& comm, const Operation& operation) {
  World& world = comm.world();
  const int peer = operation.root;
  Channel& channel = world.channel(comm.rank(), peer);
  const size_t bytes = operation.block_bytes();
  uint32_t number = channel.posted.own();
  const uint32_t begun = number;
  co_await until(channel.taken, number + 1 - kEagerMessages, peer);

  Cell& first = cell_of(channel, number);
  first.count = operation.count;
  first.dtype = operation.dtype;
  first.transfer = transfer_for(world, peer, bytes);
  if (first.transfer == Transfer::Direct) {
    first.address = reinterpret_cast<uint64_t>(operation.send);
    Exposure exposure(world, comm.rank());
    channel.posted.raise(number + 1);
    co_await until(channel.taken, number + 1, peer);
    exposure.close();
    co_return;
  }
  const char* from = static_cast<const char*>(operation.send);
  for (size_t done = 0;;) {
    const size_t piece = std::min(kCellBytes, bytes - done);
    if (piece != 0) std::memcpy(cell_of(channel, number).payload, from + done, piece);
    channel.posted.raise(++number);
    done += piece;
    if (done == bytes) break;
    co_await until(channel.taken, number + 1 - kCells, peer);
  }
  // However much room there is: a long message that nobody expects is its sender's mistake too.
  if (bytes > kCellBytes) co_await until(channel.taken, begun + 1, peer);
}

Task run_recv(Communicator& comm, const Operation& operation) {
  World& world = comm.world();
  const int peer = operation.root;
  Channel& channel = world.channel(peer, comm.rank());
  const size_t bytes = operation.block_bytes();
  uint32_t number = channel.taken.own();
  co_await until(channel.posted, number + 1, peer);

  const Cell& first = cell_of(channel, number);
  check_match(comm, operation, first);
  if (first.transfer == Transfer::Direct) {
    {
      const auto windows = comm.windows().open();
      const Reading reading(world, comm.rank(), windows.get());
      reading.read(peer, first.address, operation.recv, bytes);
      reading.finish();
    }
    channel.taken.raise(number + 1);
    co_return;
  }
  char* to = static_cast<char*>(operation.recv);
  for (size_t done = 0;;) {
    const size_t piece = std::min(kCellBytes, bytes - done);
    if (piece != 0) std::memcpy(to + done, cell_of(channel, number).payload, piece);
    channel.taken.raise(++number);
    done += piece;
    if (done == bytes) break;
    co_await until(channel.posted, number + 1, peer);
  }
}

}  // namespace hostnccl
