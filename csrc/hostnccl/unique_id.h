// What ncclGetUniqueId hands out: a random name for a meeting on this machine. Nothing exists under
// that name until the first rank arrives.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "abi/nccl_types.h"

namespace hostnccl {

using MeetingName = std::array<uint8_t, 16>;

struct UniqueId {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t machine;
  MeetingName name;
};
static_assert(sizeof(UniqueId) <= sizeof(pynccl::abi::ncclUniqueId));

pynccl::abi::ncclUniqueId make_unique_id();

// The name in an id; throws if it is not an id of this format and this machine.
MeetingName meeting_name(const pynccl::abi::ncclUniqueId& id);

std::string to_hex(const MeetingName& name);

}  // namespace hostnccl
