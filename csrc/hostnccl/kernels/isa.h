// Declarations of reduce() for each instruction set; kernels.inc compiled with different flags.
#pragma once

#include "hostnccl/kernels/reduce.h"

namespace hostnccl {

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

}  // namespace hostnccl
