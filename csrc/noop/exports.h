// Declares every entry point that libnoopnccl.so exports, from the two lists.
#pragma once

#include "abi/driver_types.h"
#include "abi/nccl_types.h"

namespace pynccl::abi {

#pragma GCC visibility push(default)
extern "C" {

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) result name(__VA_ARGS__);
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

#include "abi/c_params.inc"
#define FUNCTION(symbol, result, name, ...) result host##name(__VA_ARGS__);
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

}  // extern "C"
#pragma GCC visibility pop

}  // namespace pynccl::abi
