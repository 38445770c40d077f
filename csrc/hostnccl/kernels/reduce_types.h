// What a reduction takes besides its operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/element_size.h"

namespace hostnccl {

enum class ReduceKind : uint8_t { Sum, Prod, Max, Min, Avg };  // Avg: sum, divided by nsources once

// f32 for float32 and all narrower floats, f64 for float64, i64 or u64 for integers.
union Scalar {
  double f64;
  int64_t i64;
  uint64_t u64;
  float f32;
};

}  // namespace hostnccl
