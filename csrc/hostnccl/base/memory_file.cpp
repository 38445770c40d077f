#include "hostnccl/base/memory_file.h"

#include <sys/mman.h>

#include <cerrno>

#include "hostnccl/base/error.h"

namespace hostnccl {

Fd make_memory_file(const char* name, size_t bytes) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, which older kernels do not have
  Fd file(memfd_create(name, MFD_CLOEXEC | kNoExecSeal));
  if (!file && errno == EINVAL) file = Fd(memfd_create(name, MFD_CLOEXEC));
  if (!file) fail_errno("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    fail_errno("sizing shared memory to %zu bytes", bytes);
  }
  return file;
}

Mapping::Mapping(int fd, size_t offset, size_t bytes) : bytes_(bytes) {
  // A memory file accepts any size. Reserving as much private memory first is the best test of
  // whether the kernel can supply it.
  void* reserved = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) fail_errno("mmap of %zu bytes", bytes);
  void* memory = mmap(reserved, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                      static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, bytes);
    errno = error;
    fail_errno("mmap of %zu bytes of shared memory", bytes);
  }
  memory_ = static_cast<char*>(memory);
}

Mapping::~Mapping() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

}  // namespace hostnccl
