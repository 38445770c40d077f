// The tables of function pointers that everything above is built on: one for NCCL, one for the CUDA
// driver calls. Both are made from the lists in abi/; a null entry is a function that the loaded
// library does not have.
#pragma once

#include "abi/driver_types.h"
#include "abi/nccl_types.h"

namespace pynccl {

using namespace abi;  // NCCL's and CUDA's own names, for everything in this namespace

struct NcclTable {
#define FUNCTION(since, result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
};

struct DriverTable {
#define FUNCTION(symbol, result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
};

}  // namespace pynccl
