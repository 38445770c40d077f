// Reads of another process's memory, with process_vm_readv.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hostnccl {

// HOSTNCCL_CMA: whether ranks may read each other's buffers directly, with process_vm_readv or by
// pointer. Reads through windows are allowed in any case.
bool direct_reads_allowed();

// The number of bytes read. If that is less than requested, errno says why.
size_t read_process(pid_t pid, uint64_t address, void* to, size_t bytes);

inline bool can_read(pid_t pid, uint64_t address, void* to, size_t bytes) {
  return read_process(pid, address, to, bytes) == bytes;
}

}  // namespace hostnccl
