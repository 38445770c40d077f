#include "nccl/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace pynccl {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kWords = 512;  // of 64 bits, in a block
constexpr std::size_t kBlock = kWords * sizeof(std::uint64_t);
constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15;  // of SplitMix64
constexpr std::uint64_t kFactor = 0xD6E8FEB86659FD93;

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

alignas(64) constexpr auto kKeys = [] {
  std::array<std::uint64_t, kWords> keys{};
  for (std::size_t i = 0; i < kWords; ++i) keys[i] = mix((i + 1) * kGamma);
  return keys;
}();

// The product of the two halves of a word, each with a key added, plus the word itself. Thus it
// depends on each half even if the other half plus its key is 0.
constexpr std::uint64_t term(std::uint64_t word, std::uint64_t key) {
  const std::uint64_t low = (word + key) & 0xFFFFFFFF;
  const std::uint64_t high = ((word >> 32) + (key >> 32)) & 0xFFFFFFFF;
  return low * high + word;
}

// The sum of the terms of zeros from each word of a block to the end of the block.
constexpr auto kZeros = [] {
  std::array<std::uint64_t, kWords + 1> sums{};
  for (std::size_t i = kWords; i-- > 0;) sums[i] = sums[i + 1] + term(0, kKeys[i]);
  return sums;
}();

std::uint64_t load(const char* data, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, size);
  return word;
}

std::uint64_t sum_words_portably(const char* data, std::size_t first, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = first; i < count; ++i)
    sum += term(load(data + i * sizeof sum, sizeof sum), kKeys[i]);
  return sum;
}

#ifdef __x86_64__
// With intrinsics, because the compiler would multiply 64 bits instead of the 32-bit halves.
[[gnu::target("avx2")]] std::uint64_t sum_words_avx2(const char* data, std::size_t count) {
  const auto* keys = reinterpret_cast<const __m256i*>(kKeys.data());
  const auto* words = reinterpret_cast<const __m256i*>(data);
  __m256i sum = _mm256_setzero_si256();
  __m256i products = _mm256_setzero_si256();
  const std::size_t vectors = count / 4;
  for (std::size_t i = 0; i < vectors; ++i) {
    const __m256i word = _mm256_loadu_si256(words + i);
    const __m256i key = _mm256_load_si256(keys + i);
    const __m256i high = _mm256_add_epi32(word, key);
    const __m256i low = _mm256_add_epi64(word, key);
    products = _mm256_add_epi64(products, _mm256_mul_epu32(low, _mm256_srli_epi64(high, 32)));
    sum = _mm256_add_epi64(sum, word);
  }
  alignas(32) std::array<std::uint64_t, 4> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), _mm256_add_epi64(sum, products));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + sum_words_portably(data, vectors * 4, count);
}
#endif

// The sum of the terms of words.
std::uint64_t sum_words(const char* data, std::size_t count) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return sum_words_avx2(data, count);
#endif
  return sum_words_portably(data, 0, count);
}

// The sum of a block, padded with zeros.
std::uint64_t sum_block(const char* data, std::size_t length) {
  std::size_t count = length / sizeof(std::uint64_t);
  std::uint64_t sum = sum_words(data, count);
  if (const std::size_t rest = length % sizeof(std::uint64_t)) {
    sum += term(load(data + count * sizeof(std::uint64_t), rest), kKeys[count]);
    ++count;
  }
  return sum + kZeros[count];
}

template <bool copies>
std::uint64_t run(char* target, const char* source, std::size_t size) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < size; at += kBlock) {
    const std::size_t length = std::min(kBlock, size - at);
    if constexpr (copies) std::memcpy(target + at, source + at, length);
    sum = sum * kFactor + mix(sum_block((copies ? target : source) + at, length));
  }
  return mix(sum + size * kGamma);
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t size) {
  return run<false>(nullptr, static_cast<const char*>(data), size);
}

std::uint64_t copy_with_checksum(void* target, const void* source, std::size_t size) {
  return run<true>(static_cast<char*>(target), static_cast<const char*>(source), size);
}

}  // namespace pynccl
