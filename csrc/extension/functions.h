// Function types of nccl.h and of the driver calls, for pynccl.h: pynccl::abi::functions::ncclX is
// the type of ncclX.
#pragma once

// The lists have functions without parameters, and before C++20 a variadic macro needs at least one
// argument. Compilers accept it with a warning, which this turns off.
#if defined(__GNUC__)
#pragma GCC system_header
#endif

#include "abi/driver_types.h"
#include "abi/nccl_types.h"

namespace pynccl::abi::functions {
#define FUNCTION(since, result, name, ...) using name = result(__VA_ARGS__);
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
#ifndef CUDA_VERSION  // cuda.h defines macros with some of these names
#define FUNCTION(symbol, result, name, ...) using cu##name = result(__VA_ARGS__);
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
#endif
}  // namespace pynccl::abi::functions
