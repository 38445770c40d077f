// Checksums of host memory, computed while it is copied.
//
// The 64-bit checksum is a sum of products of 32-bit words, as in NH and XXH3, over blocks of
// 4096 bytes, which a polynomial combines. pynccl/weights/checksum.py computes the same on tensors.
// It detects errors, not forgeries: its keys are known.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pynccl {

// Returns the checksum of size bytes.
std::uint64_t checksum(const void* data, std::size_t size);

// Copies size bytes and returns the checksum of the copy.
std::uint64_t copy_with_checksum(void* target, const void* source, std::size_t size);

}  // namespace pynccl
