// Conversions of single elements between float32 and narrower floats, without branches, so loops
// over them can be vectorized.
//
// All functions have internal linkage because each instruction set compiles its own copy. The
// linker would merge copies of an inline function, and a CPU without AVX-512 could execute that of
// AVX-512.
#pragma once

#include <cstdint>

namespace hostnccl {
namespace {

inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr int32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kFloatNan = 0x7fffffff;           // CUDART_NAN_F
inline constexpr uint64_t kDoubleNan = 0xfff8000000000000;  // CUDART_NAN

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// A format with a sign, kExponentBits with IEEE 754's bias, and kMantissaBits. Codes from
// kFirstSpecial up are infinity (with a zero mantissa) and NaN. Magnitudes above kLargest are
// encoded as kLargest.
template <typename Bits_, int kExponentBits, int kMantissaBits, int32_t kFirstSpecial,
          int32_t kLargest>
struct SmallFloat {
  using Bits = Bits_;

  static float decode(Bits bits) {
    const int32_t code = bits & kCodeMask;
    const int32_t normal = (code << kShift) + kRebias;
    const int32_t special = (code << kShift) | kInfinityBits;
    // A multiplication of the shifted bits, a subnormal float32, would be slow.
    const int32_t subnormal = bits_as<int32_t>(static_cast<float>(code) * bits_as<float>(kUnit));
    int32_t magnitude = code < kFirstNormal ? subnormal : normal;
    magnitude = code >= kFirstSpecial ? special : magnitude;
    const uint32_t sign = (uint32_t{bits} & kSign) << (32 - kWidth);
    return bits_as<float>(static_cast<uint32_t>(magnitude) | sign);
  }

  static uint32_t encode(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const float magnitude = bits_as<float>(bits & ~kSignBit);
    const float clamped = magnitude < bits_as<float>(kLimit) ? magnitude : bits_as<float>(kLimit);
    // An addition of 2^kShift times the value's power of two (at least the smallest normal one)
    // makes the FPU round to the target mantissa, which then occupies the lowest bits of the sum.
    const int32_t own = bits_as<int32_t>(clamped) & kInfinityBits;
    const int32_t exponent = own > kMinNormal ? own : kMinNormal;
    const int32_t magic = exponent + (kShift << 23);
    const int32_t sum = bits_as<int32_t>(clamped + bits_as<float>(magic));
    const int32_t code = ((exponent - kMinNormal) >> kShift) + (sum - magic);
    const uint32_t sign = bits >> (32 - kWidth) & kSign;
    const uint32_t number = static_cast<uint32_t>(code) | sign;
    return value == value ? number : uint32_t{kCodeMask};
  }

 private:
  static constexpr int kWidth = 1 + kExponentBits + kMantissaBits;
  static_assert(kWidth == 8 * sizeof(Bits));
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSign = uint32_t{1} << (kWidth - 1);
  static constexpr int32_t kCodeMask = kSign - 1;  // also the code of CUDA's NaN
  static constexpr int32_t kFirstNormal = 1 << kMantissaBits;
  // As the bits of a float32:
  static constexpr int32_t kRebias = (127 - kBias) << 23;
  static constexpr int32_t kMinNormal = (127 + 1 - kBias) << 23;
  static constexpr int32_t kUnit = kMinNormal - (kMantissaBits << 23);  // the smallest subnormal
  static constexpr int32_t kLimit = (kLargest << kShift) + kRebias;
};

using Float16 = SmallFloat<uint16_t, 5, 10, 0x7c00, 0x7c00>;
using Float8e4m3 = SmallFloat<uint8_t, 4, 3, 0x7f, 0x7e>;
using Float8e5m2 = SmallFloat<uint8_t, 5, 2, 0x7c, 0x7b>;

struct Bfloat16 {
  using Bits = uint16_t;

  static float decode(Bits bits) { return bits_as<float>(uint32_t{bits} << 16); }

  static uint32_t encode(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // Inf stays, max overflows
    return value == value ? rounded : 0x7fff;
  }
};

}  // namespace
}  // namespace hostnccl
