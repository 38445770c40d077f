// The arena of pynccl_torch_malloc and pynccl_torch_free, the allocator functions for torch.
#pragma once

#include "comm/arena.h"

namespace pynccl {

// Sets the arena of the process. Throws std::invalid_argument if another one is set.
void set_torch_arena(Arena& arena);

}  // namespace pynccl
