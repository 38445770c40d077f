// What device communicators of hostnccl have beside NCCL's fields, for the CPU side of
// <pynccl/device.h>: how a thread waits for a word that a peer changes, and where barriers are.
//
// Waiting: a thread spins on the word first. Before it sleeps it calls wait(), which counts it
// among the sleepers of its rank. Who changes a word reads the count of the rank that may wait for
// it, and calls wake() if it is not 0.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pynccl::device {

inline constexpr uint32_t kHostServicesVersion = 1;

// ncclDevComm::ginHandles[0] points to it. It lives as long as the device communicator.
struct HostServices {
  uint32_t version;
  void* context;
  // Returns when the word of 32 or 64 bits is at least the value, also after a wrap-around: true.
  // False when it cannot be any more: the communicator was aborted or revoked, has failed, or a
  // rank has died.
  bool (*wait)(void* context, const void* word, int bits, uint64_t least);
  // Wakes the threads of all processes that sleep on the word.
  void (*wake)(const void* word);
};

// The beginning of each rank's resource memory.
struct alignas(128) ResourceHeader {
  std::atomic<uint32_t> sleepers;
};

// A barrier of a team of n ranks is n + 1 cells at consecutive places of the owner's memory: one
// for each rank to signal its arrival in, and one for the owner's own count.
struct alignas(64) BarrierCell {
  std::atomic<uint32_t> count;
};

constexpr std::size_t barrier_bytes(int barriers, int nranks) {
  return sizeof(BarrierCell) * static_cast<std::size_t>(barriers) *
         (static_cast<std::size_t>(nranks) + 1);
}

}  // namespace pynccl::device
