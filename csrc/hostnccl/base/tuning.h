// The thresholds of one process: what the environment gives, else what was measured, else the
// defaults of params.cpp. Where the ranks of a communicator need the same value, Segment agrees on
// one.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "hostnccl/base/tuning_model.h"

namespace hostnccl {

// HOSTNCCL_SPIN_US: how long a waiting rank spins before it sleeps.
std::chrono::microseconds spin_time();

// What has been measured: by an earlier communicator of this process, or of another one since the
// machine booted. None if that is unknown or the tuning is off.
std::optional<Measurements> known_measurements();

// Whether a communicator should measure: nothing is known, the tuning is on, and not too many
// attempts of this process were disturbed.
bool measurement_wanted();

// Makes measurements those of this process, unless it has some or its tuning is off.
void adopt_measurements(const Measurements& measured);

// How a collective moves data: every rank sends and receives, one rank only sends or receives, or
// data is reduced.
enum class Pattern { Exchange, Rooted, Reduction };
inline constexpr size_t kPatterns = 3;

// Minimum sizes for reading a peer's buffer directly instead of staging it, and for staging past
// the caches, in bytes. Within a process a direct read follows a pointer, so it pays off early.
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

// The values of this process: those of the environment, else what follows from measured.
Tuning tuning_from(const std::optional<Measurements>& measured, bool within_process,
                   bool oversubscribed);

}  // namespace hostnccl
