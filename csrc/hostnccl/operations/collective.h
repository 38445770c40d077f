// The two paths of a collective's data, staged and direct, and the call that both use. All ranks
// choose the path by values that are equal on all of them, so they choose the same path.
#pragma once

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

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

  CollectiveCall(Communicator& communicator, const Operation& called);

  bool sends() const { return !traits.only_root_sends || rank == root; }
  bool receives() const { return !traits.only_root_receives || rank == root; }
  bool reads_from(int peer) const { return !traits.only_root_sends || peer == root; }
  bool is_read_by(int peer) const { return !traits.only_root_receives || peer == root; }
  int blocks() const { return traits.block_per_destination ? nranks : 1; }  // in a contribution

  // Byte offsets of a block: in its source's send buffer, in this rank's receive buffer.
  size_t offset_in_send(int destination) const;
  size_t offset_in_recv(int source) const;
  const char* own_block() const;  // the block that this rank sends to itself
  char* recv_at(size_t offset) const { return static_cast<char*>(operation.recv) + offset; }

  // The call that a peer has published. Throws if it does not match own.
  const Descriptor& check_descriptor(int peer, const Descriptor& own) const;
  void copy_own_block(size_t from, size_t bytes) const;
  void reduce_into(void* to, size_t count) const;   // reduces collective.sources()
  bool in_windows(const WindowSet& windows) const;  // whether peers read only from windows
};

// How a call moves data, for its threshold.
Pattern pattern_of(Kind kind);

// The bytes that a rank contributes to a call. Its threshold applies to them.
size_t contribution_of(const Operation& operation, int nranks);

// The path of a call between several ranks whose buffers lie in no window: Staged or Direct.
Path path_of(const Communicator& comm, const Operation& operation);

// The elements of a block that one round of the staged path moves.
size_t staged_chunk(const Operation& operation, int nranks);

// Copies through the staging buffers in the segment, in rounds that each fill one buffer.
Task run_staged(Communicator& comm, const Operation& operation);

// Reads the other ranks' buffers directly: through their windows if windows is not null, else by
// pointer within the process or with process_vm_readv. With windows_only, all buffers must lie in
// windows. A rank knows that only of its own buffers. If those of another rank do not, the call
// falls back to the staged path.
Task run_direct(Communicator& comm, const Operation& operation,
                std::shared_ptr<const WindowSet> windows, bool windows_only);

}  // namespace hostnccl
