// Copies into memory that another CPU reads next.
#pragma once

#include <cstddef>
#include <cstring>

namespace hostnccl {

// Like memcpy, with stores that bypass this CPU's caches if it supports them. A normal store first
// takes the line back from the cache of the CPU that has read it, and leaves it in this CPU's
// cache, where the reader must fetch it. A thread that acquires a later store of this one sees the
// data.
void copy_streaming(void* to, const void* from, size_t bytes);

inline void stage(void* to, const void* from, size_t bytes, bool streams) {
  if (streams) {
    copy_streaming(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace hostnccl
