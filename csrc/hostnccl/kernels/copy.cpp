#include "hostnccl/kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hostnccl {

#if defined(__x86_64__)
void copy_streaming(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  // Writes whole lines. The memory controller would have to merge a partial one.
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(target) % kLine);
  std::memcpy(target, source, head);
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= kLine; target += kLine, source += kLine, bytes -= kLine) {
    __m128i part[kLine / sizeof(__m128i)];
    std::memcpy(part, source, kLine);
    for (size_t i = 0; i < std::size(part); ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, part[i]);
    }
  }
  std::memcpy(target, source, bytes);
  _mm_sfence();  // makes the data visible before a later store of a flag
}
#else
void copy_streaming(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace hostnccl
