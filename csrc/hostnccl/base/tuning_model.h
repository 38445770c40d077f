// Derives the thresholds from the measurements of two ranks (segment/calibration.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hostnccl {

// Times in ns, each the median of several.
struct Measurements {
  static constexpr size_t kSmall = size_t{16} << 10;
  static constexpr size_t kLarge = size_t{256} << 10;
  struct Time {  // to move kSmall and kLarge bytes
    double small;
    double large;
  };

  double round_trip;  // of a cache line between the two CPUs
  // Through shared memory; [1]: copied past the caches. A message in one direction, messages in
  // both directions at once, and a block of each rank in a collective, which is copied in before it
  // is copied out.
  Time message[2];
  Time exchange[2];
  Time blocks[2];
  Time direct;  // both ranks read each other's memory; 0 if they cannot
};

// Whether a machine can have these values. Wrong ones result from preempted ranks and damaged
// files.
bool plausible(const Measurements& measured);

// In bytes; see base/params.cpp.
struct Thresholds {
  uint64_t stream;
  uint64_t direct;
  uint64_t direct_rooted;
  uint64_t direct_message;
  uint64_t direct_exchange;
};

Thresholds thresholds_of(const Measurements& measured);

std::string to_text(const Measurements& measured);

}  // namespace hostnccl
