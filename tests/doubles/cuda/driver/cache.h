// A caching allocator like PyTorch's. The stream for which memory was allocated can reuse it
// immediately after a free, because that stream's work is ordered. A freed block is poisoned when
// its stream reaches the free. If the poison is damaged when the block is reused, an unordered
// operation has written to it, which is a violation.
#pragma once

#include <cstddef>

#include "types.h"

namespace cuda_double {

void* cache_allocate(int device, CUstream stream, size_t bytes);  // null on failure
void cache_free(void* base);
// The block is also used on that stream and becomes free once that stream's earlier work is done.
void cache_record_stream(void* base, CUstream stream);

}  // namespace cuda_double
