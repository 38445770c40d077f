// Processes of this machine: who they are, whether they live, and what makes up "this machine".
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace hostnccl {

// A pid alone is reused; with its start time it is not.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // clock ticks since boot
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();
ProcessId process_of(pid_t pid);  // start 0: not known

bool is_alive(const ProcessId& process);

// The same for one that has just closed its end: a dying process closes before it is gone, so this
// gives it a moment.
bool stays_alive(const ProcessId& process);

// How often this process is the child of a fork: what a parent made, a child must not use.
uint32_t fork_generation();

// Hash of the boot, the network namespace and the pid namespace: equal for those who can meet.
uint64_t machine_identity();

}  // namespace hostnccl
