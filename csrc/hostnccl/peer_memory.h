// Reading another rank's buffers where they are: by pointer within a process and in windows, else
// by process_vm_readv.
//
// A rank whose operation fails gives its buffers back to the user while others may still be at
// them. So readers announce themselves (Reading), and an Exposure that ends in failure, which the
// world's failure word has announced before, waits for them to notice.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "hostnccl/window.h"
#include "hostnccl/world.h"

namespace hostnccl {

// HOSTNCCL_CMA=0 keeps all ranks out of each other's buffers, threads too.
bool direct_reads_wanted();

bool can_read(pid_t pid, uint64_t address, void* to, size_t bytes);

// While it lives this rank reads others' memory. finish() throws if what was read may have been
// overwritten meanwhile because its owner had failed.
class Reading {
 public:
  Reading(World& world, int rank, const WindowSet* windows);
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading();

  void read(int peer, uint64_t address, void* to, size_t bytes) const;
  // The bytes of a peer as a pointer: its own memory if it can be, else copied into scratch.
  const void* view(int peer, uint64_t address, void* scratch, size_t bytes) const;
  void check() const;
  void finish() const { check(); }

 private:
  const char* reach(int peer, uint64_t address, size_t bytes) const;  // or null

  World& world_;
  const WindowSet* windows_;
  std::atomic<uint32_t>& flag_;
};

// This rank's buffers are open to others until close().
class Exposure {
 public:
  Exposure(World& world, int rank) : world_(world), rank_(rank) {}
  Exposure(const Exposure&) = delete;
  Exposure& operator=(const Exposure&) = delete;
  ~Exposure();
  void close() { open_ = false; }

 private:
  World& world_;
  int rank_;
  bool open_ = true;
};

}  // namespace hostnccl
