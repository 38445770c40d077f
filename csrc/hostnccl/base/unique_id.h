// What ncclGetUniqueId and ncclCommGetUniqueId hand out: a random name for a meeting on this
// machine. Nothing exists under that name until the first rank arrives.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/base/process.h"

namespace hostnccl {

using RendezvousName = std::array<uint8_t, 16>;

enum class Purpose : uint32_t { Init, Grow };

struct UniqueId {
  char magic[8];
  uint32_t version;
  uint32_t purpose;
  uint64_t machine;
  RendezvousName name;
  ProcessId creator;  // Grow: who joins can see whether it lives
};
static_assert(sizeof(UniqueId) <= sizeof(pynccl::abi::ncclUniqueId));

pynccl::abi::ncclUniqueId make_unique_id(Purpose purpose = Purpose::Init);

RendezvousName random_name();

// What is in an id; throws if it is not one of this format, this machine and this purpose.
UniqueId read_unique_id(const pynccl::abi::ncclUniqueId& id, Purpose purpose, const char* argument);
RendezvousName rendezvous_name(const pynccl::abi::ncclUniqueId& id);  // of a commId

// The name that everybody gets who has the same name to start from and the same words.
RendezvousName derived_name(const RendezvousName& from, const std::string& words);

std::string to_hex(const RendezvousName& name);

}  // namespace hostnccl
