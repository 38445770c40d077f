// The size of an element of NCCL's types.
#pragma once

#include <cstddef>

#include "nccl_types.h"  // beside this file, in the sources and when installed

namespace pynccl::abi {

constexpr std::size_t element_size(ncclDataType_t dtype) {  // bytes
  constexpr unsigned char kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  static_assert(sizeof kSizes == ncclNumTypes);
  return kSizes[dtype];
}

}  // namespace pynccl::abi
