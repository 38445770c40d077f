// Secrets of a world, and proofs by which a process shows that it knows one without revealing it.
// Also unique ids and the keys of rendezvous.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "abi/nccl_types.h"
#include "hostnccl/base/process.h"

namespace hostnccl {

// SHA-256 (FIPS 180-4), usable in constant expressions; a static_assert tests it.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  constexpr void add(const uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) add(bytes[i]);
  }
  constexpr void add(std::string_view text) {
    for (const char c : text) add(static_cast<uint8_t>(c));
  }
  constexpr void add(uint8_t byte) {
    block_[length_++ % 64] = byte;
    if (length_ % 64 == 0) mix();
  }

  constexpr Digest finish() {
    const uint64_t bits = length_ * 8;
    add(uint8_t{0x80});
    while (length_ % 64 != 56) add(uint8_t{0});
    for (int shift = 56; shift >= 0; shift -= 8) add(static_cast<uint8_t>(bits >> shift));
    Digest digest{};
    for (size_t i = 0; i < digest.size(); ++i) {
      digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
  }

 private:
  // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static constexpr uint32_t kRounds[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};

  constexpr void mix() {
    uint32_t w[64];
    for (size_t i = 0; i < 16; ++i) {
      w[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 |
             uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<uint32_t, 8> s = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t e = s[4], a = s[0];
      const uint32_t first = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & s[5]) ^ (~e & s[6])) + kRounds[i] + w[i];
      const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                              ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s = {first + second, a, s[1], s[2], s[3] + first, e, s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  uint64_t length_ = 0;
};

// Test vector of the standard: one block.
static_assert([] {
  Sha256 hash;
  hash.add("abc");
  return hash.finish();
}() == Sha256::Digest{0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
                      0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
                      0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad});

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

// Version of the ids, the messages of a rendezvous and the layouts in shared memory.
inline constexpr uint32_t kProtocol = 9;

// The secret of a rendezvous, known only to its ranks. They find each other by its hash, and prove
// to each other that they know it.
using RendezvousKey = std::array<uint8_t, 16>;

enum class Purpose : uint32_t { Init, Grow };

// The content of an ncclUniqueId, with the random key of a rendezvous on this machine. An id owns
// no resources. None exist for it until the first rank joins.
struct UniqueId {
  char magic[8];
  uint32_t version;
  uint32_t purpose;
  uint64_t machine;
  RendezvousKey key;
  ProcessId creator;  // Grow: the joining ranks check whether it is alive
};
static_assert(sizeof(UniqueId) <= sizeof(pynccl::abi::ncclUniqueId));

pynccl::abi::ncclUniqueId make_unique_id(Purpose purpose = Purpose::Init);

// Parses an id. Throws unless it has this format, machine and purpose.
UniqueId read_unique_id(const pynccl::abi::ncclUniqueId& id, Purpose purpose, const char* argument);

RendezvousKey random_key();

// A key derived from a secret and a text that need not be secret.
RendezvousKey derive_key(const Secret& from, const std::string& text);

}  // namespace hostnccl
