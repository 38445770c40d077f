// Identity, liveness and memory of processes, and the identity of this machine.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace hostnccl {

// A pid may be reused; a pid together with its start time is unique.
struct ProcessId {
  int32_t pid = 0;
  // Clock ticks since boot and, in the upper bits, a part of the address of the program's stack, or
  // zeros if the kernel hides it.
  uint64_t start = 0;
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();
ProcessId process_of(pid_t pid);  // start is 0 if it is unknown

bool is_alive(const ProcessId& process);

// Liveness of a process that has just closed its end of a socket. A dying process closes its
// descriptors before it disappears, so this checks it for up to 100 ms.
bool is_alive_after_close(const ProcessId& process);

// Number of forks since the library was loaded. A child must not use communicators that its parent
// created.
uint32_t fork_generation();

// Reads the memory of another process with process_vm_readv. Returns the number of bytes read. If
// it is less than requested, errno is set.
size_t read_process(pid_t pid, uint64_t address, void* to, size_t bytes);

inline bool can_read(pid_t pid, uint64_t address, void* to, size_t bytes) {
  return read_process(pid, address, to, bytes) == bytes;
}

// The number of threads of this machine that run or are ready to, if it is known and this thread
// may run on all CPUs of the machine.
std::optional<int> runnable_threads();

uint64_t boot_identity();  // hash of this boot of the machine

// Hash of the boot, the network namespace and the pid namespace. Only ranks with the same value can
// share a communicator.
uint64_t machine_identity();

}  // namespace hostnccl
