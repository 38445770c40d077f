// Identity and liveness of processes, and the identity of this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace hostnccl {

// A pid may be reused; a pid together with its start time is unique.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // clock ticks since boot
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();
ProcessId process_of(pid_t pid);  // start is 0 if it is unknown

bool is_alive(const ProcessId& process);

// Liveness of a process that has just closed its end of a socket. A dying process closes its
// descriptors before it disappears, so this watches it for up to 100 ms.
bool is_alive_after_close(const ProcessId& process);

// Number of forks since the library was loaded. A child must not use communicators that its parent
// created.
uint32_t fork_generation();

uint64_t boot_identity();  // hash of this boot of the machine

// Hash of the boot, the network namespace and the pid namespace. Ranks can share a communicator if
// it is equal for all of them.
uint64_t machine_identity();

}  // namespace hostnccl
