// Copies to memory that another CPU reads next.
#pragma once

#include <cstddef>
#include <cstring>

namespace hostnccl {

// memcpy with stores that bypass this CPU's caches, if the CPU supports them. A normal store first
// reclaims the line from the cache of the CPU that has read it, and leaves it in this CPU's cache,
// from which the reader must fetch it. A thread that acquires a later store of this thread sees the
// data.
void copy_streaming(void* to, const void* from, size_t bytes);

// Copies past the caches if streams is true.
inline void stage(void* to, const void* from, size_t bytes, bool streams) {
  if (streams) {
    copy_streaming(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace hostnccl
