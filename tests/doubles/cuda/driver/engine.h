// The engine of the double: a copy of libhostnccl.so next to libcuda.so.1, loaded on first use. It
// is a copy so that the host provider of the same process has its own state.
#pragma once

#include "types.h"

namespace cuda_double {

struct Engine {
  void* handle = nullptr;  // for dlsym
#define FUNCTION(symbol, result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
};

const Engine& engine();  // ends the process if the engine cannot be loaded

}  // namespace cuda_double
