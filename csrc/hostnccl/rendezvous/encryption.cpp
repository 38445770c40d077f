#include "hostnccl/rendezvous/encryption.h"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <optional>
#include <type_traits>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

constexpr size_t kMinKeyBytes = 32;  // as in NCCL

std::mutex cipher_mutex;
std::optional<Sha256::Digest> hash_of_key;

}  // namespace

void set_encryption(const abi::ncclEncryptionConfig_t* config) {
  std::optional<Sha256::Digest> given;
  if (config != nullptr) {
    if (config->magic != abi::kApiMagic) {
      fail(abi::ncclInvalidArgument,
           "config->magic=%#x: it was not initialized with NCCL_ENCRYPTION_CONFIG_INITIALIZER",
           config->magic);
    }
    constexpr size_t kSmallest = offsetof(abi::ncclEncryptionConfig_t, psk) + sizeof(char*);
    if (config->size < kSmallest) {
      fail(abi::ncclInvalidArgument,
           "config->size=%zu is not the size of an ncclEncryptionConfig_t", config->size);
    }
    if (config->mode == abi::NCCL_ENCRYPTION_MODE_PSK) {
      if (config->psk == nullptr) {
        fail(abi::ncclInvalidArgument,
             "config->psk is null: NCCL_ENCRYPTION_MODE_PSK requires a key");
      }
      const size_t length = std::strlen(config->psk);
      if (length < kMinKeyBytes) {  // error texts never show the key
        fail(abi::ncclInvalidArgument, "config->psk has %zu bytes, fewer than %zu", length,
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
  const std::lock_guard lock(cipher_mutex);
  hash_of_key = given;
}

KeyProof prove_key(const RendezvousKey& rendezvous, int rank, const ProcessId& process) {
  std::optional<Sha256::Digest> secret;
  {
    const std::lock_guard lock(cipher_mutex);
    secret = hash_of_key;
  }
  if (!secret) return {};
  struct {
    RendezvousKey rendezvous;
    int64_t rank;
    int64_t pid;
    uint64_t start;
  } const message{rendezvous, rank, process.pid, process.start};
  static_assert(std::has_unique_object_representations_v<decltype(message)>);
  return hmac(*secret, {reinterpret_cast<const uint8_t*>(&message), sizeof message});
}

}  // namespace hostnccl
