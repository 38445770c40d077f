#include "hostnccl/rendezvous/encryption.h"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <optional>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

constexpr size_t kMinKeyBytes = 32;  // as in NCCL

std::mutex mutex;
std::optional<Sha256::Digest> key;  // hash of the key

// HMAC (RFC 2104) of a message with the key.
template <class Message>
Sha256::Digest authenticate(const Sha256::Digest& secret, const Message& message) {
  constexpr size_t kBlock = 64;
  const auto keyed = [&secret](uint8_t pad) {
    Sha256 hash;
    for (size_t i = 0; i < kBlock; ++i) {
      hash.add(static_cast<uint8_t>((i < secret.size() ? secret[i] : 0) ^ pad));
    }
    return hash;
  };
  Sha256 inner = keyed(0x36);
  inner.add(reinterpret_cast<const uint8_t*>(&message), sizeof message);
  const Sha256::Digest digest = inner.finish();
  Sha256 outer = keyed(0x5c);
  outer.add(digest.data(), digest.size());
  return outer.finish();
}

}  // namespace

void set_encryption(const abi::ncclEncryptionConfig_t* config) {
  std::optional<Sha256::Digest> given;
  if (config != nullptr) {
    if (config->magic != abi::kApiMagic) {
      fail(abi::ncclInvalidArgument,
           "config->magic=%#x: it was not initialised with NCCL_ENCRYPTION_CONFIG_INITIALIZER",
           config->magic);
    }
    constexpr size_t kSmallest = offsetof(abi::ncclEncryptionConfig_t, psk) + sizeof(char*);
    if (config->size < kSmallest) {
      fail(abi::ncclInvalidArgument,
           "config->size=%zu is not the size of an ncclEncryptionConfig_t", config->size);
    }
    if (config->mode == abi::NCCL_ENCRYPTION_MODE_PSK) {
      if (config->psk == nullptr) {
        fail(abi::ncclInvalidArgument, "config->psk is null: NCCL_ENCRYPTION_MODE_PSK needs a key");
      }
      const size_t length = std::strlen(config->psk);
      if (length < kMinKeyBytes) {  // error texts never show the key
        fail(abi::ncclInvalidArgument, "config->psk has %zu bytes, must have at least %zu", length,
             kMinKeyBytes);
      }
      Sha256 hash;
      hash.add(std::string_view(config->psk, length));
      given = hash.finish();
    } else if (config->mode != abi::NCCL_ENCRYPTION_MODE_NONE) {
      fail(abi::ncclInvalidArgument, "config->mode=%d is not one of ncclEncryptionMode_t",
           config->mode);
    }
  }
  const std::lock_guard lock(mutex);
  key = given;
}

KeyProof prove_key(const RendezvousName& name, int rank, const ProcessId& process) {
  std::optional<Sha256::Digest> secret;
  {
    const std::lock_guard lock(mutex);
    secret = key;
  }
  if (!secret) return {};
  struct {
    RendezvousName name;
    int64_t rank;
    int64_t pid;
    uint64_t start;
  } const message{name, rank, process.pid, process.start};
  static_assert(sizeof message == sizeof(RendezvousName) + 3 * sizeof(int64_t));  // no padding
  return authenticate(*secret, message);
}

}  // namespace hostnccl
