// Numbers that the environment can change, each read once per process. Wherever ranks
// must agree on one, they settle it while their segment is made.
#pragma once

#include <chrono>
#include <cstddef>

namespace hostnccl {

void read_tuning();  // throws if the environment has something else than numbers

// HOSTNCCL_SPIN_US: how long a waiting rank stays awake before it sleeps.
std::chrono::microseconds spin_time();

// From how many bytes on data is read out of its owner's memory instead of going through that of
// the segment: what a rank contributes to a collective (HOSTNCCL_DIRECT_BYTES; if it lies in
// windows on all ranks, HOSTNCCL_WINDOW_BYTES), what a message has (HOSTNCCL_DIRECT_MESSAGE_BYTES).
// Within a process that is but a pointer to follow; the kernel's access of another process is
// slower than two copies in the caches until these overflow. A message in pieces needs both sides
// awake, which they are not in a crowd.
size_t direct_bytes(bool within_process);
size_t window_bytes();
size_t direct_message_bytes(bool within_process, bool oversubscribed);

}  // namespace hostnccl
