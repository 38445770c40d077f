// reduce() for each instruction set: kernels.inc, compiled with different flags.
#pragma once

#include "hostnccl/kernels/reduce_types.h"

namespace hostnccl {

using ReduceFunction = void(void* dst, const void* const* sources, const Scalar* scalars,
                            int nsources, size_t count, pynccl::abi::ncclDataType_t dtype,
                            ReduceKind kind);

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
