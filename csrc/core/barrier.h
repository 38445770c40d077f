// A memory barrier between a thread that passes often and one that passes rarely: the first pays
// nothing at run time.
#pragma once

#include <atomic>

namespace pynccl {

// On the frequent side, between a store and a load.
inline void light_barrier() { std::atomic_signal_fence(std::memory_order_seq_cst); }
// On the rare side, between a store and a load: a barrier in every running thread (membarrier).
void heavy_barrier();

}  // namespace pynccl
