// NCCL's functions in the engine.
#pragma once

#include "types.h"

namespace cuda_double {

struct Table {
#define FUNCTION(since, result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
};

const Table& nccl();  // the engine's; null for functions it lacks

// The version of this library, as an NCCL_VERSION_CODE.
extern const int kNcclVersion;

}  // namespace cuda_double
