// AccessEpoch another rank's buffers where they are: by pointer within a process and in windows,
// else by process_vm_readv.
//
// A rank whose operation fails gives its buffers back to the user while others may still be at
// them. So readers announce themselves (AccessEpoch), and an ExposureEpoch that ends in failure,
// which the segment's failure word has announced before, waits for them to notice.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "hostnccl/segment/segment.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

// HOSTNCCL_CMA=0 keeps all ranks out of each other's buffers, threads too.
bool direct_reads_wanted();

bool can_read(pid_t pid, uint64_t address, void* to, size_t bytes);

// While it lives this rank reads others' memory. finish() throws if what was read may have been
// overwritten meanwhile because its owner had failed.
class AccessEpoch {
 public:
  AccessEpoch(Segment& segment, int rank, const WindowSet* windows);
  AccessEpoch(const AccessEpoch&) = delete;
  AccessEpoch& operator=(const AccessEpoch&) = delete;
  ~AccessEpoch();

  void read(int peer, uint64_t address, void* to, size_t bytes) const;
  // The bytes of a peer as a pointer: its own memory if it can be, else copied into scratch.
  const void* view(int peer, uint64_t address, void* scratch, size_t bytes) const;
  void check() const;
  void finish() const { check(); }

 private:
  const char* local_address(int peer, uint64_t address, size_t bytes) const;  // or null

  Segment& segment_;
  const WindowSet* windows_;
  std::atomic<uint32_t>& flag_;
};

// This rank's buffers are open to others until close().
class ExposureEpoch {
 public:
  ExposureEpoch(Segment& segment, int rank) : segment_(segment), rank_(rank) {}
  ExposureEpoch(const ExposureEpoch&) = delete;
  ExposureEpoch& operator=(const ExposureEpoch&) = delete;
  ~ExposureEpoch();
  void close() { open_ = false; }

 private:
  Segment& segment_;
  int rank_;
  bool open_ = true;
};

}  // namespace hostnccl
