// The additional fields of hostnccl's device communicators, for the CPU side of <pynccl/device.h>:
// how a thread waits for a word that a peer changes, and where barriers are.
//
// A thread first spins on the word. Before it sleeps, it calls wait(), which counts it among the
// sleepers of its rank. A thread that changes a word reads the count of the rank that may wait for
// it, and calls wake() if the count is not 0.
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
  // Returns true when the word of 32 or 64 bits is at least the value, even after a wrap-around.
  // Returns false if it can no longer become so: the communicator was aborted or revoked, has
  // failed, or a rank has died.
  bool (*wait)(void* context, const void* word, int bits, uint64_t least);
  // Wakes the threads of all processes that sleep on the word.
  void (*wake)(const void* word);
};

// The beginning of each rank's resource memory.
struct alignas(128) ResourceHeader {
  std::atomic<uint32_t> sleepers;
};

// A barrier of a team of n ranks is n + 1 consecutive cells in the owner's memory: one for each
// rank to signal its arrival, and one for the owner's own count.
struct alignas(64) BarrierCell {
  std::atomic<uint32_t> count;
};

constexpr std::size_t barrier_bytes(int barriers, int nranks) {
  return sizeof(BarrierCell) * static_cast<std::size_t>(barriers) *
         (static_cast<std::size_t>(nranks) + 1);
}

}  // namespace pynccl::device
