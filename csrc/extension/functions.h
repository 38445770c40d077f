// For pynccl.h: the types of the nccl.h functions and of the stream calls, under their own names,
// in pynccl::abi::functions.
#pragma once

// The lists contain variadic macro calls without arguments, which C++17 lacks and compilers
// support.
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
#ifndef CUDA_VERSION  // cuda.h defines some of these names as macros
#define FUNCTION(symbol, result, name, ...) using cu##name = result(__VA_ARGS__);
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
#endif
}  // namespace pynccl::abi::functions
