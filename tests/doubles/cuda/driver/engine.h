// The engine below the double: a copy of libhostnccl.so beside libcuda.so.1, loaded at first use. A
// copy, so that the host provider of the same process has its own state.
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

const Engine& engine();  // ends the process where the engine cannot be loaded

}  // namespace cuda_double
