// The thresholds of one process: the environment's, else the measured ones, else the defaults of
// params.cpp. If the ranks of a communicator need the same value, Segment agrees on one.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "hostnccl/base/tuning_model.h"

namespace hostnccl {

// HOSTNCCL_SPIN_US: how long a waiting rank spins before it sleeps.
std::chrono::microseconds spin_time();

// The measurements of an earlier communicator of this process, or of another one since the machine
// booted. None if they are unknown or tuning is off.
std::optional<Measurements> known_measurements();

// Whether a communicator should measure: nothing is known, tuning is on, and not too many attempts
// of this process were disturbed.
bool measurement_wanted();

// Adopts measurements for this process, unless it has some or its tuning is off.
void adopt_measurements(const Measurements& measured);

// How a collective moves data: every rank sends and receives, one rank only sends or receives, or
// data is reduced.
enum class Pattern { Exchange, Rooted, Reduction };
inline constexpr size_t kPatterns = 3;

// Minimum sizes, in bytes, for reading a peer's buffer directly instead of staging it, and for
// staging past the caches. Within a process a direct read follows a pointer, so it pays off early.
struct Tuning {
  size_t direct[kPatterns];  // contribution of a rank to a collective
  size_t window;             // the same if the buffers lie in windows on all ranks
  size_t message;            // a message alone
  size_t exchange;           // a message in a group with other operations
  size_t message_in_process;
  size_t stream;

  size_t direct_message(bool within_process, bool alone) const {
    return within_process ? message_in_process : alone ? message : exchange;
  }
};

// The values of this process: those of the environment, else those derived from measured.
Tuning tuning_from(const std::optional<Measurements>& measured, bool within_process,
                   bool oversubscribed);

}  // namespace hostnccl
