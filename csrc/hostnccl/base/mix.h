// mix(): the finalizer of SplitMix64, a bijective hash of a 64-bit number.
#pragma once

#include <cstdint>

namespace hostnccl {

constexpr uint64_t mix(uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

}  // namespace hostnccl
