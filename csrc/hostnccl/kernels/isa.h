// One reduce() per instruction set: the same kernels.inc, compiled with other flags.
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
