// Names shared by the double's files: NCCL's and CUDA's own, and result codes that pynccl does not
// need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/driver_types.h"
#include "abi/nccl_types.h"

namespace cuda_double {

using namespace pynccl::abi;

}  // namespace cuda_double
