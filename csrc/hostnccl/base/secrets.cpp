#include "hostnccl/base/secrets.h"

#include <sys/random.h>

#include "hostnccl/base/error.h"

namespace hostnccl {

void fill_random(std::span<uint8_t> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) fail_errno("getrandom");
}

Proof hmac(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  constexpr size_t kBlock = 64;
  const auto keyed = [&key](uint8_t pad, std::span<const uint8_t> text) {
    Sha256 hash;
    for (size_t i = 0; i < kBlock; ++i) {
      hash.add(static_cast<uint8_t>((i < key.size() ? key[i] : 0) ^ pad));
    }
    hash.add(text.data(), text.size());
    return hash.finish();
  };
  return keyed(0x5c, keyed(0x36, message));
}

bool same_proof(const Proof& a, const Proof& b) {
  unsigned different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == 0;
}

}  // namespace hostnccl
