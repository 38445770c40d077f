// The arena of pynccl_torch_malloc and pynccl_torch_free, the allocator functions for torch.
#pragma once

#include "comm/arena.h"

namespace pynccl {

// Sets the arena, once in a process. Throws std::invalid_argument where another one is set.
void set_torch_arena(Arena& arena);

}  // namespace pynccl
