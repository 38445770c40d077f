// Direct reads of peers' buffers: by pointer within a process and in windows, else with
// process_vm_readv.
//
// A rank whose operation fails returns its buffers to the user while peers may still read them by
// pointer. A reader therefore marks its access (AccessEpoch). An ExposureEpoch that ends without
// close() waits until no rank of its process reads any more. The failure is written to the segment
// first, so that readers stop soon.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hostnccl/segment/segment.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

// Access of this rank to peers' buffers, for its lifetime. check() throws if the segment has
// failed: then the owner of a buffer may have overwritten what was read. Call finish() after the
// last read.
class AccessEpoch {
 public:
  AccessEpoch(Segment& segment, int rank, const WindowSet* windows);
  AccessEpoch(const AccessEpoch&) = delete;
  AccessEpoch& operator=(const AccessEpoch&) = delete;
  ~AccessEpoch();

  void read(int peer, uint64_t address, void* to, size_t bytes) const;
  // The peer's bytes: a pointer to its memory if that is mapped here, else a copy in scratch.
  const void* view(int peer, uint64_t address, void* scratch, size_t bytes) const;
  void check() const;
  void finish() const { check(); }

 private:
  // The address of the peer's memory in this process; null if it is not mapped.
  const char* local_address(int peer, uint64_t address, size_t bytes) const;

  Segment& segment_;
  const WindowSet* windows_;
  std::atomic<uint32_t>& accessing_;
};

// Exposure of this rank's buffers to peers, until close().
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
