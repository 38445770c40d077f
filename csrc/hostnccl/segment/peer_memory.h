// Direct reads of peers' buffers: by pointer within a process and in windows, else with
// process_vm_readv.
//
// A rank whose operation fails returns its buffers to the user while peers may still read them by
// pointer. Readers therefore mark their access (AccessEpoch), and an ExposureEpoch that ends
// without close() waits until no rank of its process reads. The rank fails the segment first, which
// stops the readers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hostnccl/segment/segment.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

// The period during which this rank reads peers' buffers: the lifetime of the object. Call check()
// after the last read. It throws if the segment has failed, because the owner of a buffer may then
// have overwritten it.
class AccessEpoch {
 public:
  AccessEpoch(Segment& segment, int rank, const WindowSet* windows);
  AccessEpoch(const AccessEpoch&) = delete;
  AccessEpoch& operator=(const AccessEpoch&) = delete;
  ~AccessEpoch();

  // windows: the identity of the windows that the peer has open. If this rank has others open, the
  // memory at the address may no longer be that of a window.
  void read(int peer, uint64_t windows, uint64_t address, void* to, size_t bytes) const;
  // A pointer to the peer's bytes: to its memory if that is mapped here, else to a copy in scratch.
  const void* view(int peer, uint64_t windows, uint64_t address, void* scratch, size_t bytes) const;
  void check() const;

 private:
  // The address of the peer's memory in this process. Null if it is not mapped.
  const char* local_address(int peer, uint64_t windows, uint64_t address, size_t bytes) const;

  Segment& segment_;
  const WindowSet* windows_;
  std::atomic<uint32_t>& accessing_;
};

// The period during which peers may read this rank's buffers, until close().
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
