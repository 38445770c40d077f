// Communication inside a kernel: one source for GPUs and for CPUs.
//
//     #include <pynccl/device.h>
//     struct Arguments { ncclDevComm comm; ncclWindow_t window; float* out; size_t count; };
//     PYNCCL_KERNEL(total, Arguments, block, a) {
//       pynccl::device::all_reduce_one_shot(block, a.comm, a.window, 0, a.out, a.count);
//     }
//
// CUDA C++17, nvcc or NVRTC: uses NCCL's <nccl_device.h>, version 2.28.7 or later. `total` is a
// __global__ function that takes Arguments by value.
// C++20 for CPUs: uses device communicators of hostnccl. The function is then `extern "C" void
// total(void*)` and takes the address of Arguments. ncclDevComm, ncclWindow_t and ncclTeam are
// pynccl's declarations of the same ABI; if nccl.h is used as well, include it first.
//
// Calls. All threads of a block must call a function together, with the same arguments, as with
// ncclLsaBarrierSession. Functions that only compute an address are an exception: any thread may
// call them. Ranks are those of the LSA team, whose memory a kernel can load and store; size() is
// their number. In hostnccl these are all ranks.
//
// Order. Stores of copy(), put() and the caller are visible to a peer after signal() or the
// barrier's arrive(), which release them, and wait(), which acquires them. Nothing else orders
// them.
//
// Failure. On CPUs, functions that wait return false if the wait can no longer end: the
// communicator was aborted or has failed. The memory is then undefined, and the kernel should
// return. On GPUs a kernel does not detect an abort, since NCCL's device communicators for programs
// have no abort flag: wait() and barriers end only with their signal. wait_for() has a time limit
// on both sides.
#pragma once

#if defined(__CUDACC__)
#include "device/on_cuda.h"
#else
#include "device/on_host.h"
#endif

namespace pynccl::device {

// The number of ranks that can load and store each other's memory, and this rank's index among
// them.
PYNCCL_DEVICE inline int size(const ncclDevComm& comm) { return comm.lsaSize; }
PYNCCL_DEVICE inline int rank(const ncclDevComm& comm) { return comm.lsaRank; }

// The number of ranks of the communicator, and this rank's index among them.
PYNCCL_DEVICE inline int world_size(const ncclDevComm& comm) { return comm.nRanks; }
PYNCCL_DEVICE inline int world_rank(const ncclDevComm& comm) { return comm.rank; }

// Copies bytes to the memory of a rank of the LSA team. `source` is in this rank's memory.
PYNCCL_DEVICE inline void put(const Block& block, ncclWindow_t window, size_t offset, int rank,
                              const void* source, size_t bytes) {
  copy(block, lsa(window, offset, rank), source, bytes);
}

// Copies bytes from the memory of a rank of the LSA team. `target` is in this rank's memory.
PYNCCL_DEVICE inline void get(const Block& block, void* target, ncclWindow_t window, size_t offset,
                              int rank, size_t bytes) {
  copy(block, target, lsa(window, offset, rank), bytes);
}

// The part of `count` elements that a block of the grid works on: whole groups of 16 bytes, except
// at the end.
struct Slice {
  size_t begin;
  size_t count;
};

template <typename T>
PYNCCL_DEVICE inline Slice slice(const Block& block, size_t count) {
  constexpr size_t group = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
  const size_t groups = (count + group - 1) / group;
  const size_t each = (groups + block.count() - 1) / block.count() * group;
  const size_t begin = each * block.index() < count ? each * block.index() : count;
  return {begin, count - begin < each ? count - begin : each};
}

// The following three use one barrier per block: those from `barrier` to barrier + block.count() -
// 1. ncclDevCommRequirements::lsaBarrierCount is the number of barriers. The window's memory may be
// overwritten after the call, in the kernel or later in the stream.

// out[i] on every rank = sum over the ranks of the i-th element at `offset` of their windows. The
// sum is in rank order, so it is bitwise the same on all ranks. Half-width floats are added in
// float. `out` must not overlap the window's elements.
//   offset: bytes, the same on all ranks; count: elements.
template <typename T>
PYNCCL_DEVICE inline bool all_reduce_one_shot(const Block& block, const ncclDevComm& comm,
                                              ncclWindow_t window, size_t offset, T* out,
                                              size_t count, int barrier = 0) {
  LsaBarrier session(block, comm, barrier + block.index());
  if (!session.sync()) return false;
  const Slice own = slice<T>(block, count);
  sum(block, comm, window, offset + own.begin * sizeof(T), out + own.begin, own.count);
  return session.sync();
}

// The same for elements anywhere in this rank's memory, with one barrier instead of two: for the
// smallest messages. `in` is copied to scratch memory of the window, of which successive calls use
// two halves alternately. `out` may be `in`.
//   scratch: bytes, the offset of 2 * capacity elements; capacity: elements, at least `count`; both
//   in multiples of 16 bytes. Calls with one scratch memory have the same capacity, barrier and
//   grid.
template <typename T>
PYNCCL_DEVICE inline bool all_reduce_buffered(const Block& block, const ncclDevComm& comm,
                                              ncclWindow_t window, size_t scratch, size_t capacity,
                                              const T* in, T* out, size_t count, int barrier = 0) {
  LsaBarrier session(block, comm, barrier + block.index());
  // The slices are those of the capacity, so that a block uses the same scratch memory in all
  // calls.
  Slice own = slice<T>(block, capacity);
  own.count = own.begin >= count              ? 0
              : own.begin + own.count < count ? own.count
                                              : count - own.begin;
  const size_t offset = scratch + (session.phase() * capacity + own.begin) * sizeof(T);
  copy(block, local(window, offset), in + own.begin, own.count * sizeof(T));
  if (!session.sync()) return false;
  // A rank that overwrites this half has passed the barrier of the next call, at which this rank
  // arrives once it has read the half.
  sum(block, comm, window, offset, out + own.begin, own.count);
  return true;
}

// out[i] = sum over the ranks of element rank(comm) * count + i at `offset` of their windows.
//   offset: bytes; count: elements of `out`.
template <typename T>
PYNCCL_DEVICE inline bool reduce_scatter(const Block& block, const ncclDevComm& comm,
                                         ncclWindow_t window, size_t offset, T* out, size_t count,
                                         int barrier = 0) {
  return all_reduce_one_shot(block, comm, window, offset + rank(comm) * count * sizeof(T), out,
                             count, barrier);
}

// out[r * count + i] = element i at `offset` of the window of rank r.
//   offset: bytes; count: elements of each rank.
template <typename T>
PYNCCL_DEVICE inline bool all_gather(const Block& block, const ncclDevComm& comm,
                                     ncclWindow_t window, size_t offset, T* out, size_t count,
                                     int barrier = 0) {
  LsaBarrier session(block, comm, barrier + block.index());
  if (!session.sync()) return false;
  const Slice own = slice<T>(block, count);
  const size_t begin = own.begin * sizeof(T);
  for (int i = 0; i < size(comm); ++i) {  // each rank begins with another one
    const int from = (rank(comm) + i) % size(comm);
    get(block, out + from * count + own.begin, window, offset + begin, from, own.count * sizeof(T));
  }
  return session.sync();
}

}  // namespace pynccl::device
