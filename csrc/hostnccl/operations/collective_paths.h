// The two ways in which a collective's data travels, and what both need to know of a call. Which
// one is taken follows from what all ranks agree on, so all take the same.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

// Everybody's role in one collective call.
struct Call {
  Communicator& comm;
  Segment& segment;
  const Operation& operation;
  const CollectiveTraits& traits;
  const int rank;
  const int nranks;
  const size_t element;  // bytes

  Call(Communicator& communicator, const Operation& called);

  bool sends() const { return !traits.only_root_sends || rank == operation.root; }
  bool receives() const { return !traits.only_root_receives || rank == operation.root; }
  bool takes_from(int peer) const { return !traits.only_root_sends || peer == operation.root; }
  bool gives_to(int peer) const { return !traits.only_root_receives || peer == operation.root; }
  int blocks() const { return traits.block_per_destination ? nranks : 1; }  // in a contribution

  // Byte offsets of a block: in its source's send buffer, in this rank's receive buffer.
  size_t offset_in_send(int destination) const;
  size_t offset_in_recv(int source) const;
  const char* own_block() const;  // what this rank sends to itself
  char* recv_at(size_t offset) const { return static_cast<char*>(operation.recv) + offset; }

  // What peer has published; throws if it is another call than ours.
  const Descriptor& meet(int peer, const Descriptor& own) const;
  void copy_own_block(size_t from, size_t bytes) const;
  void reduce_into(void* to, size_t count) const;   // of comm.sources()
  bool in_windows(const WindowSet& windows) const;  // whether all is that others read of this rank
};

// Through the slots of the rank_states, in staged of what fits into a slot.
Task run_staged(Communicator& comm, const Operation& operation);

// Straight out of the other ranks' buffers, in windows (if there are any) or, with anywhere,
// wherever they are. Without, all must lie in windows, which each rank knows of its own only: where
// one does not, the call goes in staged after all.
Task run_direct(Communicator& comm, const Operation& operation,
                std::shared_ptr<const WindowSet> windows, bool anywhere);

}  // namespace hostnccl
