// out = reduce_scatter(a @ b) in one kernel: each rank computes the product tile by tile, stores
// each tile directly into the memory of the rank that adds it up, and signals that rank. It begins
// with the next rank's rows and ends with its own, which hide the communication of the others.
//
// On GPUs: any number of blocks up to the number of barriers of the device communicator, all of
// them running at the same time.
#include "matmul.h"

struct MatmulReduceScatterArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t partial;  // bytes: float [ranks, rows, columns] in the window, which the peers fill
  size_t flags;    // bytes: uint32 [ranks, tiles] in the window, 0 before the first call
  const float* a;  // [ranks * rows, depth], this rank's part of the inner dimension
  const float* b;  // [depth, columns]
  float* out;      // [rows, columns]
  int rows, depth, columns;
  int tile;        // rows of one; tiles = ceil(rows / tile)
  uint32_t epoch;  // 1 in the first call, and one more in each: flags are never reset
};

PYNCCL_KERNEL(matmul_reduce_scatter, MatmulReduceScatterArguments, block, a) {
  using namespace pynccl::device;
  const int n = size(a.comm);
  const int me = rank(a.comm);
  const int tiles = (a.rows + a.tile - 1) / a.tile;

  // Wait until the peers have read what the previous call stored into their memory.
  LsaBarrier previous(block, a.comm, block.index());
  if (!previous.sync()) return;

  for (int i = 1; i <= n; ++i) {
    const int to = (me + i) % n;
    const float* left = a.a + static_cast<size_t>(to) * a.rows * a.depth;
    float* partial =
        lsa<float>(a.window, a.partial, to) + static_cast<size_t>(me) * a.rows * a.columns;
    for (int t = block.index(); t < tiles; t += block.count()) {
      const int first = t * a.tile;
      const int rows = a.rows - first < a.tile ? a.rows - first : a.tile;
      multiply(block, left + static_cast<size_t>(first) * a.depth, a.b,
               partial + static_cast<size_t>(first) * a.columns, rows, a.depth, a.columns);
      signal(block, a.comm, to, lsa<uint32_t>(a.window, a.flags, to) + me * tiles + t, a.epoch);
    }
  }

  const float* partial = local<const float>(a.window, a.partial);
  const uint32_t* flags = local<const uint32_t>(a.window, a.flags);
  const size_t stride = static_cast<size_t>(a.rows) * a.columns;
  for (int t = block.index(); t < tiles; t += block.count()) {
    for (int from = 0; from < n; ++from) {
      if (!wait(block, a.comm, flags + from * tiles + t, a.epoch)) return;
    }
    const size_t first = static_cast<size_t>(t) * a.tile * a.columns;
    const size_t end = first + static_cast<size_t>(a.tile) * a.columns;
    for (size_t i = first + block.thread(); i < end && i < stride; i += block.threads()) {
      float sum = partial[i];
      for (int from = 1; from < n; ++from) sum += partial[from * stride + i];
      a.out[i] = sum;
    }
  }
}
