// ncclMemAlloc's memory: whole pages, zeroed.
#pragma once

#include <cstddef>

namespace hostnccl {

void* allocate_memory(size_t bytes);
void free_memory(void* memory);  // throws if it is not allocated

}  // namespace hostnccl
