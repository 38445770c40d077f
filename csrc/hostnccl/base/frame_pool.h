// Free lists of coroutine frames, one set per thread, so that a call allocates nothing in steady
// state.
#pragma once

#include <cstddef>

namespace hostnccl {

void* allocate_frame(size_t bytes);
void free_frame(void* frame, size_t bytes) noexcept;

}  // namespace hostnccl
