// Content of an ncclUniqueId: the random name of a rendezvous on this machine. An id owns nothing;
// nothing exists under the name until the first rank joins.
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
  ProcessId creator;  // Grow: the joiners check whether it is alive
};
static_assert(sizeof(UniqueId) <= sizeof(pynccl::abi::ncclUniqueId));

pynccl::abi::ncclUniqueId make_unique_id(Purpose purpose = Purpose::Init);

RendezvousName random_name();

// Parses an id; throws unless it has this format, this machine and this purpose.
UniqueId read_unique_id(const pynccl::abi::ncclUniqueId& id, Purpose purpose, const char* argument);
RendezvousName rendezvous_name(const pynccl::abi::ncclUniqueId& id);  // of a commId

// A name that follows from another name and a text; equal inputs give equal names.
RendezvousName derived_name(const RendezvousName& from, const std::string& text);

std::string to_hex(const RendezvousName& name);

}  // namespace hostnccl
