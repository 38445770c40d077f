// Tuning values that every operation reads: the parameters of params.h, parsed once per process.
// Where the ranks of a communicator need the same value, Segment::finish_setup() agrees on one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>

#include "hostnccl/kernels/copy.h"

namespace hostnccl {

// Parses all of them; throws if the environment holds a wrong value.
void read_tuning();

// HOSTNCCL_SPIN_US: how long a waiting rank spins before it sleeps.
std::chrono::microseconds spin_time();

// Minimum size for reading a peer's buffer directly instead of staging it: a rank's contribution to
// a collective (direct_threshold; window_threshold if the buffers lie in windows on all ranks), or
// a message.
//
// Within a process a direct read follows a pointer, so it pays off early. Between processes
// process_vm_readv is slower than two copies as long as these stay in the caches. When ranks are
// oversubscribed the threshold of messages is lower: each piece of a staged message needs both
// sides to be scheduled.
size_t direct_threshold(bool within_process);
size_t window_threshold();
size_t direct_message_threshold(bool within_process, bool oversubscribed);

// Minimum size of a message, or of a block of a collective, to copy it into shared memory past the
// caches (kernels/copy.h).
size_t stream_threshold();

// A copy of a part of so many bytes into memory that another rank reads next.
inline void stage(void* to, const void* from, size_t bytes, size_t total) {
  if (total >= stream_threshold()) {
    copy_streaming(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace hostnccl
