// The implementations of libcuda.so.1's functions. Each is declared here from the lists under its
// short name, implemented in driver_*.cpp, and exported and recorded by exports.cpp.
#pragma once

#include "driver/stream.h"

namespace cuda_double::driver {

#define FUNCTION(symbol, result, name, ...) result name(__VA_ARGS__);
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"

#include "driver/more_functions.inc"

#include "abi/undef.inc"

}  // namespace cuda_double::driver
