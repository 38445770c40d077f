// out = all_gather(a) @ b in one kernel: each rank puts its rows of `a` to all ranks tile by tile,
// and multiplies a tile as soon as it has arrived. It starts with its own tiles, for which it does
// not wait. They hide the communication of the others.
//
// On GPUs: any number of blocks up to the number of barriers of the device communicator, all of
// them running at the same time.
#include "matmul.h"

struct AllGatherMatmulArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t gathered;  // bytes: float [ranks, rows, depth] in the window, which the peers fill
  size_t flags;     // bytes: uint32 [ranks, tiles] in the window, 0 before the first call
  const float* a;   // [rows, depth], of this rank
  const float* b;   // [depth, columns]
  float* out;       // [ranks * rows, columns]
  int rows, depth, columns;
  int tile;        // rows of one; tiles = ceil(rows / tile)
  uint32_t epoch;  // 1 in the first call, and one more in each: flags are never reset
};

PYNCCL_KERNEL(all_gather_matmul, AllGatherMatmulArguments, block, a) {
  using namespace pynccl::device;
  const int n = size(a.comm);
  const int me = rank(a.comm);
  const int tiles = (a.rows + a.tile - 1) / a.tile;
  const size_t row_bytes = a.depth * sizeof(float);

  // Wait until the peers have read what the previous call put into their memory.
  LsaBarrier previous(block, a.comm, block.index());
  if (!previous.sync()) return;

  for (int t = block.index(); t < tiles; t += block.count()) {
    const int first = t * a.tile;
    const int rows = a.rows - first < a.tile ? a.rows - first : a.tile;
    const size_t offset = a.gathered + (static_cast<size_t>(me) * a.rows + first) * row_bytes;
    for (int i = 1; i < n; ++i) {
      const int to = (me + i) % n;
      put(block, a.window, offset, to, a.a + static_cast<size_t>(first) * a.depth,
          rows * row_bytes);
      signal(block, a.comm, to, lsa<uint32_t>(a.window, a.flags, to) + me * tiles + t, a.epoch);
    }
  }

  const float* gathered = local<const float>(a.window, a.gathered);
  const uint32_t* flags = local<const uint32_t>(a.window, a.flags);
  for (int i = 0; i < n; ++i) {
    const int from = (me + n - i) % n;  // itself, then in the order in which the peers put
    const float* source =
        from == me ? a.a : gathered + static_cast<size_t>(from) * a.rows * a.depth;
    float* out = a.out + static_cast<size_t>(from) * a.rows * a.columns;
    for (int t = block.index(); t < tiles; t += block.count()) {
      if (from != me && !wait(block, a.comm, flags + from * tiles + t, a.epoch)) return;
      const int first = t * a.tile;
      const int rows = a.rows - first < a.tile ? a.rows - first : a.tile;
      multiply(block, source + static_cast<size_t>(first) * a.depth, a.b,
               out + static_cast<size_t>(first) * a.columns, rows, a.depth, a.columns);
    }
  }
}
