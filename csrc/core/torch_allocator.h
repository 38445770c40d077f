// The arena behind pynccl_torch_malloc and pynccl_torch_free, torch's way to an arena.
#pragma once

#include "core/arena.h"

namespace pynccl {

// Chooses it, once in a process. Throws std::invalid_argument where another one was chosen before.
void set_torch_arena(Arena& arena);

}  // namespace pynccl
