// NcclTable and DriverTable: function pointers, generated from the lists in abi/. An entry is null
// if the loaded library lacks the function.
#pragma once

#include "abi/driver_types.h"
#include "abi/element_size.h"
#include "abi/nccl_types.h"

namespace pynccl {

using namespace abi;  // makes NCCL's and CUDA's names visible throughout this namespace

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
