// Element-wise reductions, and the sizes of NCCL's datatypes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/element_size.h"

namespace hostnccl {

// Avg: the sum, divided once by the number of sources.
enum class ReduceKind : uint8_t { Sum, Prod, Max, Min, Avg };

// A factor: f32 for float32 and narrower floats, f64 for float64, i64 or u64 for integers.
union Scalar {
  double f64;
  int64_t i64;
  uint64_t u64;
  float f32;
};

// dst[i] = sources[0][i] op sources[1][i] op ..., in this order. The bits depend only on the
// arguments, not on the CPU, the alignment, or the caller's rounding and flush-to-zero modes.
//
//  * float16, bfloat16 and 8-bit floats accumulate in float32 and round once, to nearest even.
//    float16 and bfloat16 overflow to infinity. 8-bit floats saturate, even infinities, as in CUDA.
//  * Integers wrap. Their Avg divides the wrapped sum and truncates toward zero.
//  * Max and Min prefer a number over a NaN, and order -0 before +0.
//  * A NaN result has the bit pattern that CUDA's headers define for its type.
//  * A single source without a scalar is copied unchanged.
//
// scalars, if not null, contains one factor per source, by which the source is multiplied first
// (PreMulSum). The kind is then Sum. dst may be identical to any of the sources, but must not
// overlap them otherwise. Pointers need not be aligned. nsources is at least 1.
void reduce(void* dst, const void* const* sources, const Scalar* scalars, int nsources,
            size_t count, pynccl::abi::ncclDataType_t dtype, ReduceKind kind);

// The same per instruction set: kernels.inc, compiled with different flags.
using ReduceFunction = decltype(reduce);
namespace baseline {
ReduceFunction reduce;
}
namespace avx2 {
ReduceFunction reduce;
}
namespace avx512 {
ReduceFunction reduce;
}

// The element at address, converted to a Scalar.
Scalar load_scalar(const void* address, pynccl::abi::ncclDataType_t dtype);

// The instruction set in use: "baseline", "avx2" or "avx512". It is the best one that this CPU
// supports, or the older one that HOSTNCCL_ISA names.
const char* kernel_isa();

}  // namespace hostnccl
