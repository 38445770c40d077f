// The flags of nccl.h as constants.
#pragma once

namespace pynccl::abi {

#define CONSTANT(since, name, value) inline constexpr int name = value;
#include "abi/constants.inc"
#undef CONSTANT

}  // namespace pynccl::abi
