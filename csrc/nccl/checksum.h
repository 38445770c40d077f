// Checksums of host memory, computed while it is copied.
//
// The 64-bit checksum sums products of 32-bit words over blocks of 4096 bytes, as NH and XXH3 do,
// and combines the blocks in a polynomial. pynccl/weights/checksum.py computes the same on tensors.
// It detects errors but not forgeries, because its keys are public.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pynccl {

// Returns the checksum of size bytes.
std::uint64_t checksum(const void* data, std::size_t size);

// Copies size bytes and returns the checksum of the copy.
std::uint64_t copy_with_checksum(void* target, const void* source, std::size_t size);

}  // namespace pynccl
