// The kernel's id of the calling thread. glibc provides gettid() only from 2.30 on, and the wheels
// target 2.28.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace common {

inline pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

}  // namespace common
