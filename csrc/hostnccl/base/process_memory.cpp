#include "hostnccl/base/process_memory.h"

#include <sys/uio.h>

#include <cerrno>

#include "hostnccl/base/params.h"

namespace hostnccl {

bool direct_reads_allowed() { return param_number(ParamId::Cma) != 0; }

size_t read_process(pid_t pid, uint64_t address, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    iovec local{static_cast<char*>(to) + done, bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t read = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) break;
    done += static_cast<size_t>(read);
  }
  return done;
}

}  // namespace hostnccl
