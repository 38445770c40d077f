// A memory barrier between a thread that passes often and one that passes rarely: the first pays
// nothing at run time.
#pragma once

#include <atomic>

namespace pynccl {

// On the frequent side, between a store and a load.
inline void light_barrier() { std::atomic_signal_fence(std::memory_order_seq_cst); }
// On the rare side, between a store and a load: a barrier in every running thread (membarrier).
void heavy_barrier();
// Registers the process for heavy_barrier(), when the module is imported: at once while there is
// one thread, else in the background, since the kernel then waits for a grace period, which takes
// seconds on a machine under load.
void prepare_heavy_barrier() noexcept;

}  // namespace pynccl
