// An asymmetric memory barrier: no instruction on the frequent side, a system call on the other.
#pragma once

#include <atomic>

namespace pynccl {

// The frequent side, between a store and a load.
inline void light_barrier() { std::atomic_signal_fence(std::memory_order_seq_cst); }
// The rare side, between a store and a load: a barrier in every running thread (membarrier).
void heavy_barrier();
// Registers the process for heavy_barrier() when the module is imported. With a single thread this
// is immediate. Otherwise it runs in the background, because the kernel waits for a grace period,
// which can take seconds on a loaded machine.
void prepare_heavy_barrier() noexcept;

}  // namespace pynccl
