// Conversions of whole blocks between float32 and narrower floats. All functions have internal
// linkage: see small_floats.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "hostnccl/kernels/small_floats.h"

namespace hostnccl {
namespace {

// An element at any address, exempt from strict aliasing.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  T value;
};

#ifdef __F16C__

constexpr size_t kVectorWidth = 16;  // elements

// Formats that a CPU with F16C decodes as float16. Each has load_halves(), which loads kVectorWidth
// elements as float16, and kHalfScale, the factor to apply after the decoding.
template <typename Small>
constexpr float kHalfScale = 0;
template <>
constexpr float kHalfScale<Float16> = 1;
template <>
constexpr float kHalfScale<Float8e5m2> = 1;
template <>
constexpr float kHalfScale<Float8e4m3> = 256;  // 2 to the difference of the biases

template <typename Small>
__m256i load_halves(const void* source) = delete;

template <>
inline __m256i load_halves<Float16>(const void* source) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(source));
}

template <>
inline __m256i load_halves<Float8e5m2>(const void* source) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(source));
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
}

template <>
inline __m256i load_halves<Float8e4m3>(const void* source) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(source));
  // Sign extension also sets the bit above the code, which the shift moves out of the value.
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i all_ones = _mm256_set1_epi16(0x7f << 7);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(shifted, all_ones), all_ones);
  const __m256i nan = _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00));
  return _mm256_or_si256(_mm256_andnot_si256(_mm256_set1_epi16(0x4000), shifted), nan);
}

inline void store_floats(__m256i halves, float scale, void* out) {
  const __m256 scales = _mm256_set1_ps(scale);
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  _mm256_storeu_ps(static_cast<float*>(out), _mm256_mul_ps(low, scales));
  _mm256_storeu_ps(static_cast<float*>(out) + 8, _mm256_mul_ps(high, scales));
}

inline void store_halves(const void* in, void* out) {
  for (int i = 0; i < 2; ++i) {
    const __m256 floats = _mm256_loadu_ps(static_cast<const float*>(in) + 8 * i);
    const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(static_cast<__m128i*>(out) + i, halves);
  }
}

#endif  // __F16C__

template <typename Small>
void decode_block(const Unaligned<typename Small::Bits>* in, Unaligned<float>* out, size_t count) {
  size_t i = 0;
#ifdef __F16C__
  if constexpr (kHalfScale<Small> != 0) {
    for (; i + kVectorWidth <= count; i += kVectorWidth) {
      store_floats(load_halves<Small>(in + i), kHalfScale<Small>, out + i);
    }
  }
#endif
  for (; i < count; ++i) out[i].value = Small::decode(in[i].value);
}

// Overwrites the input, whose NaNs must be canonical.
template <typename Small>
void encode_block(Unaligned<float>* in, Unaligned<typename Small::Bits>* out, size_t count) {
  size_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<Small, Float16>) {
    for (; i + kVectorWidth <= count; i += kVectorWidth) store_halves(in + i, out + i);
  }
#endif
  // Two loops, because in a single one the compiler narrows each term of the code separately.
  auto* const codes = reinterpret_cast<Unaligned<uint32_t>*>(in);
  for (size_t k = i; k < count; ++k) codes[k].value = Small::encode(in[k].value);
  for (; i < count; ++i) out[i].value = static_cast<typename Small::Bits>(codes[i].value);
}

}  // namespace
}  // namespace hostnccl
