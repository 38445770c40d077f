#include "hostnccl/base/keys.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "hostnccl/base/error.h"
#include "hostnccl/base/process.h"

namespace hostnccl {
namespace {

constexpr char kMagic[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};

const char* function_of(Purpose purpose) {
  return purpose == Purpose::Grow ? "ncclCommGetUniqueId" : "ncclGetUniqueId";
}

}  // namespace

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

abi::ncclUniqueId make_unique_id(Purpose purpose) {
  UniqueId id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  id.version = kProtocol;
  id.purpose = static_cast<uint32_t>(purpose);
  id.machine = machine_identity();
  id.key = random_key();
  if (purpose == Purpose::Grow) id.creator = this_process();
  abi::ncclUniqueId out{};
  std::memcpy(out.internal, &id, sizeof id);
  return out;
}

UniqueId read_unique_id(const abi::ncclUniqueId& given, Purpose purpose, const char* argument) {
  UniqueId id;
  std::memcpy(&id, given.internal, sizeof id);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) {
    fail(abi::ncclInvalidArgument,
         "%s was not created by hostnccl's %s: every rank must use the same library", argument,
         function_of(purpose));
  }
  if (id.version != kProtocol) {
    fail(abi::ncclInvalidArgument,
         "%s has format %u, this hostnccl has format %u: every rank must use the same version",
         argument, id.version, kProtocol);
  }
  if (id.machine != machine_identity()) {
    fail(abi::ncclInvalidArgument,
         "%s comes from another machine or container (another boot, network namespace or pid "
         "namespace): hostnccl works within one machine. Use NCCL across machines",
         argument);
  }
  if (id.purpose != static_cast<uint32_t>(purpose)) {
    fail(abi::ncclInvalidArgument, "%s was created by %s, not by %s", argument,
         function_of(static_cast<Purpose>(id.purpose)), function_of(purpose));
  }
  return id;
}

RendezvousKey random_key() { return random_bytes<sizeof(RendezvousKey)>(); }

RendezvousKey derive_key(const Secret& from, const std::string& text) {
  const Proof digest = hmac(from, bytes_of(text));
  RendezvousKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

}  // namespace hostnccl
