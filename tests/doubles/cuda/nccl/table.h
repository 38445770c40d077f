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

const Table& nccl();  // the engine's; null entries for what it does not have

// The version that this library is, as NCCL_VERSION_CODE.
extern const int kNcclVersion;

}  // namespace cuda_double
