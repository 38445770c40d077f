// Operators of a reduction on single elements: scale, combine, divide, canonicalize NaNs. All
// functions have internal linkage: see small_floats.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "hostnccl/kernels/small_floats.h"

namespace hostnccl {
namespace {

enum Operator { kSum, kProd, kMax, kMin, kAvg, kPreMulSum, kNumOperators };

template <typename T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T>;

// The type in which T is added and multiplied. Overflow of a signed type would be undefined.
template <typename T>
struct WrappingOf {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct WrappingOf<float> {
  using Type = float;
};
template <>
struct WrappingOf<double> {
  using Type = double;
};
template <typename T>
using Wrapping = typename WrappingOf<T>::Type;

template <typename T>
inline T add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}

template <typename T>
inline T multiply(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// Maximum or minimum. For floats IEEE 754's maximumNumber and minimumNumber.
template <Operator op, typename T>
inline T extremum(T a, T b) {
  const T strict = (op == kMax ? a > b : a < b) ? a : b;
  if constexpr (kIsFloat<T>) {
    // Differs from strict only if a == b. Their bits are then equal, or they are +0 and -0.
    const T weak = (op == kMax ? a >= b : a <= b) ? a : b;
    const auto x = bits_as<BitsOf<T>>(strict), y = bits_as<BitsOf<T>>(weak);
    const T number = bits_as<T>(op == kMax ? x & y : x | y);
    return b == b ? number : a;  // NOLINT(misc-redundant-expression): a NaN
  } else {
    return strict;
  }
}

template <Operator op, typename T>
inline T combine(T a, T b) {
  if constexpr (op == kProd) {
    return multiply(a, b);
  } else if constexpr (op == kMax || op == kMin) {
    return extremum<op>(a, b);
  } else {
    return add(a, b);
  }
}

// Divides by an integer of at least 2, with truncation. Integers of up to 32 bits are divided in a
// float type, because vector units cannot divide integers: for x >= 0, (x + 1/2) / n has the
// integer part of x / n and differs from any integer by at least 1 / (2n), far more than its
// rounding error.
template <typename T>
class Divider {
 public:
  explicit Divider(int divisor) : divisor_(static_cast<Number>(divisor)) {
    if constexpr (kByReciprocal) divisor_ = 1 / divisor_;
  }

  T operator()(T value) const {
    if constexpr (kByReciprocal) {
      // With a divisor of at least 2, the quotient of an unsigned value fits as well.
      using Quotient = std::conditional_t<sizeof(T) == 1, int16_t, int32_t>;
      const Number half = value < 0 ? Number{-0.5} : Number{0.5};
      return static_cast<T>(static_cast<Quotient>((static_cast<Number>(value) + half) * divisor_));
    } else {
      return static_cast<T>(value / divisor_);
    }
  }

 private:
  static constexpr bool kByReciprocal = !kIsFloat<T> && sizeof(T) <= 4;
  using Reciprocal = std::conditional_t<sizeof(T) == 1, float, double>;
  using Number = std::conditional_t<kByReciprocal, Reciprocal, T>;
  Number divisor_;
};

// Replaces a NaN with a fixed bit pattern, because the NaN of an operation depends on the CPU and
// on the order of the operands that the compiler chooses.
template <typename T>
inline T canonical(T value) {
  if constexpr (std::is_same_v<T, float>) {
    // NOLINTNEXTLINE(misc-redundant-expression)
    return value == value ? value : bits_as<float>(kFloatNan);
  } else if constexpr (std::is_same_v<T, double>) {
    // NOLINTNEXTLINE(misc-redundant-expression)
    return value == value ? value : bits_as<double>(kDoubleNan);
  } else {
    return value;
  }
}

}  // namespace
}  // namespace hostnccl
