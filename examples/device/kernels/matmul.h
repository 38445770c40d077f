// A small matrix product of row-major float matrices, for kernels that overlap one with
// communication. It uses neither shared memory nor tensor cores.
#pragma once

#include <pynccl/device.h>

// c[rows, columns] = a[rows, depth] @ b[depth, columns] by the threads of a block. Each thread
// computes kColumns neighbouring columns, which compilers turn into vector instructions.
PYNCCL_DEVICE inline void multiply(const pynccl::device::Block& block, const float* a,
                                   const float* b, float* c, int rows, int depth, int columns) {
#ifdef __CUDACC__
  constexpr int kColumns = 4;
#else
  constexpr int kColumns = 64;
#endif
  const int groups = (columns + kColumns - 1) / kColumns;
  for (int i = block.thread(); i < rows * groups; i += block.threads()) {
    const int row = i / groups;
    const int first = i % groups * kColumns;
    const int width = columns - first < kColumns ? columns - first : kColumns;
    const float* left = a + static_cast<size_t>(row) * depth;
    const float* right = b + first;
    float* out = c + static_cast<size_t>(row) * columns + first;
    float sum[kColumns] = {};
    if (width == kColumns) {
      for (int k = 0; k < depth; ++k, right += columns) {
        for (int j = 0; j < kColumns; ++j) sum[j] += left[k] * right[j];
      }
    } else {
      for (int k = 0; k < depth; ++k, right += columns) {
        for (int j = 0; j < width; ++j) sum[j] += left[k] * right[j];
      }
    }
    for (int j = 0; j < width; ++j) out[j] = sum[j];
  }
}
