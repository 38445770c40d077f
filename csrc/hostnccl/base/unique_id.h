// UniqueId: the content of an ncclUniqueId, with the random key of a rendezvous on this machine. An
// id owns no resources. None exist for it until the first rank joins.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/secrets.h"

namespace hostnccl {

// Version of the ids, the messages of a rendezvous and the layouts in shared memory.
inline constexpr uint32_t kProtocol = 6;

// The secret of a rendezvous, known only to its ranks. They find each other by its hash, and prove
// to each other that they know it.
using RendezvousKey = std::array<uint8_t, 16>;

enum class Purpose : uint32_t { Init, Grow };

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
RendezvousKey rendezvous_key(const pynccl::abi::ncclUniqueId& id);  // of a commId

RendezvousKey random_key();

// A key derived from a secret and a text that need not be secret.
RendezvousKey derive_key(const Secret& from, const std::string& text);

}  // namespace hostnccl
