// The tables of function pointers: NcclTable and DriverTable, generated from the lists in abi/. A
// null entry is a function that the loaded library does not have.
#pragma once

#include "abi/driver_types.h"
#include "abi/element_size.h"
#include "abi/nccl_types.h"

namespace pynccl {

using namespace abi;  // NCCL's and CUDA's names, in all of this namespace

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
