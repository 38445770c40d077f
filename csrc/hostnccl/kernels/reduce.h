// The element-wise reductions of hostnccl, and what it must know about NCCL's datatypes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/nccl_types.h"

namespace hostnccl {

enum class ReduceKind : uint8_t { Sum, Prod, Max, Min, Avg };  // Avg: sum, divided by nsources once

// f32 for float32 and all narrower floats, f64 for float64, i64 or u64 for integers.
union Scalar {
  double f64;
  int64_t i64;
  uint64_t u64;
  float f32;
};

// dst[i] = sources[0][i] op sources[1][i] op ..., in that order, so the bits depend on nothing but
// the arguments: not on the CPU, the alignment, or the caller's rounding and flush-to-zero modes.
//
//  * float16, bfloat16 and 8-bit floats accumulate in float32 and round once, to nearest even.
//    float16 and bfloat16 overflow to infinity; 8-bit floats saturate, infinities too, as in CUDA.
//  * Integers wrap. Their Avg divides the wrapped sum and truncates toward zero.
//  * Max and Min prefer a number over a NaN, and hold -0 to be less than +0.
//  * A NaN result is the one bit pattern that CUDA's headers name for its type.
//  * A single source, unless it has a scalar, is copied bit by bit.
//
// With scalars, one per source, each source is first multiplied by its own (PreMulSum); the kind is
// then Sum. dst may be identical to any of the sources and must not overlap them otherwise. No
// pointer need be aligned. nsources is at least 1.
void reduce(void* dst, const void* const* sources, const Scalar* scalars, int nsources,
            size_t count, pynccl::abi::ncclDataType_t dtype, ReduceKind kind);

// The element at address, as reduce() takes it for a scalar.
Scalar load_scalar(const void* address, pynccl::abi::ncclDataType_t dtype);

inline size_t element_size(pynccl::abi::ncclDataType_t dtype) {  // bytes
  constexpr uint8_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  static_assert(sizeof kSizes == pynccl::abi::ncclNumTypes);
  return kSizes[dtype];
}

// The instruction set in use: "baseline", "avx2" or "avx512". It is the best that this CPU has;
// the environment variable HOSTNCCL_ISA can only lower it.
const char* kernel_isa();

}  // namespace hostnccl
