// Secrets of a world, and proofs by which a process shows that it knows one without revealing it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "hostnccl/base/sha256.h"

namespace hostnccl {

using Secret = std::array<uint8_t, 32>;
using Proof = Sha256::Digest;

void fill_random(std::span<uint8_t> bytes);  // from the kernel; throws

template <size_t kSize>
std::array<uint8_t, kSize> random_bytes() {
  std::array<uint8_t, kSize> bytes;
  fill_random(bytes);
  return bytes;
}

// HMAC-SHA-256 (RFC 2104) of a message. The key has at most 64 bytes.
Proof hmac(std::span<const uint8_t> key, std::span<const uint8_t> message);

// Compares in constant time.
bool same_proof(const Proof& a, const Proof& b);

inline std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace hostnccl
