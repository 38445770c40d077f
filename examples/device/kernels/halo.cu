// One step of a 5-point stencil on a grid whose rows are distributed over the ranks. Each rank puts
// its first and last row into its neighbours' memory, signals, computes its inner rows in the
// meantime, waits for the neighbours' rows, and computes its own first and last. The outermost rows
// and columns of the whole grid keep their values.
//
// Halo rows have two slots, for even and odd steps. A neighbour has read the slot of step s before
// it signals step s + 1, and a rank waits for that signal before it puts step s + 2. No barrier is
// therefore needed. On GPUs: any number of blocks; one launch is one step.
#include <pynccl/device.h>

struct HaloArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t halo;        // bytes: float [2 slots, 2 sides, columns] in the window; side 0 is above
  size_t flags;       // bytes: uint32 [2 sides] in the window, 0 before the first step
  const float* grid;  // [rows, columns], of this rank
  float* next;        // [rows, columns]
  int rows, columns;
  uint32_t step;  // 1 for the first step, and one more in each
};

PYNCCL_DEVICE inline void stencil_row(const pynccl::device::Block& block, const float* above,
                                      const float* row, const float* below, float* out,
                                      int columns) {
  for (int j = block.thread(); j < columns; j += block.threads()) {
    const bool inside = above != nullptr && below != nullptr && j > 0 && j < columns - 1;
    out[j] = inside ? 0.25F * (above[j] + below[j] + row[j - 1] + row[j + 1]) : row[j];
  }
}

PYNCCL_KERNEL(halo_step, HaloArguments, block, a) {
  using namespace pynccl::device;
  const int me = rank(a.comm);
  const int last = a.rows - 1;
  const int slot = static_cast<int>(a.step % 2);
  const size_t bytes = a.columns * sizeof(float);
  const bool has_above = me > 0;
  const bool has_below = me < size(a.comm) - 1;
  const auto row = [&](int i) { return a.grid + static_cast<size_t>(i) * a.columns; };
  const auto out = [&](int i) { return a.next + static_cast<size_t>(i) * a.columns; };
  const auto halo = [&](int side) { return a.halo + (slot * 2 + side) * bytes; };

  if (block.index() == 0) {
    if (has_above) {  // which has this row below its last
      put(block, a.window, halo(1), me - 1, row(0), bytes);
      signal(block, a.comm, me - 1, lsa<uint32_t>(a.window, a.flags, me - 1) + 1, a.step);
    }
    if (has_below) {
      put(block, a.window, halo(0), me + 1, row(last), bytes);
      signal(block, a.comm, me + 1, lsa<uint32_t>(a.window, a.flags, me + 1), a.step);
    }
  }

  for (int i = 1 + block.index(); i < last; i += block.count()) {
    stencil_row(block, row(i - 1), row(i), row(i + 1), out(i), a.columns);
  }

  // The first block computes the first row, the last block the last.
  const uint32_t* flags = local<const uint32_t>(a.window, a.flags);
  if (block.index() == 0) {
    if (has_above && !wait(block, a.comm, flags, a.step)) return;
    const float* above = has_above ? local<const float>(a.window, halo(0)) : nullptr;
    if (last > 0) stencil_row(block, above, row(0), row(1), out(0), a.columns);
  }
  if (block.index() == block.count() - 1) {
    if (has_below && !wait(block, a.comm, flags + 1, a.step)) return;
    if (last == 0 && has_above && !wait(block, a.comm, flags, a.step)) return;
    const float* below = has_below ? local<const float>(a.window, halo(1)) : nullptr;
    const float* above = last > 0    ? row(last - 1)
                         : has_above ? local<const float>(a.window, halo(0))
                                     : nullptr;
    stencil_row(block, above, row(last), below, out(last), a.columns);
  }
}
