// A caching allocator as PyTorch's: freed memory is used again by the stream that it was allocated
// for, at once, because that stream's work is in order. A freed block is poisoned when its stream
// comes to the free. Where the poison is no longer intact when the block is used again, an
// operation without order has written to it, which is a violation.
#pragma once

#include <cstddef>

#include "types.h"

namespace cuda_double {

void* cache_allocate(int device, CUstream stream, size_t bytes);  // null: it failed
void cache_free(void* base);
// The block is also used on that stream: it is free when that stream's work until now is done.
void cache_record_stream(void* base, CUstream stream);

}  // namespace cuda_double
