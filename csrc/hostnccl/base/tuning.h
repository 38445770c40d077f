// Tuning: the thresholds of one process. Their sources are the environment, else measurements of
// this machine, else the defaults of params.cpp. If the ranks of a communicator need the same
// value, Segment agrees on one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace hostnccl {

// HOSTNCCL_SPIN_US: how long a waiting rank spins before it sleeps.
std::chrono::microseconds spin_time();

// HOSTNCCL_CMA: whether ranks may read each other's buffers directly, with process_vm_readv or by
// pointer. Reads through windows are always allowed.
bool direct_reads_allowed();

// Of the samples of one time. A mean would include preemptions, and operations rarely reach the
// minimum.
struct Summary {
  double median;
  double spread;  // third quartile / first quartile
};

// Of at least one sample. Sorts them.
inline Summary summarize(std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  const size_t last = samples.size() - 1;
  const size_t quarter = last / 4;
  return {samples[(last + 1) / 2], samples[last - quarter] / samples[quarter]};
}

// Times between two ranks (segment/calibration.h) in ns, each the median of several.
struct Measurements {
  static constexpr size_t kSmall = size_t{16} << 10;
  static constexpr size_t kLarge = size_t{256} << 10;
  struct Time {  // to move kSmall and kLarge bytes
    double small;
    double large;
  };

  double round_trip;  // of a cache line between the two CPUs
  // Through shared memory. [1]: copied past the caches.
  Time message[2];   // in one direction
  Time exchange[2];  // messages in both directions at once
  Time blocks[2];    // a block of each rank in a collective, copied in before it is copied out
  Time direct;       // both ranks read each other's memory; 0 if they cannot

  double spread;    // the largest ratio of the third to the first quartile of a time's samples
  int64_t seconds;  // since 1970, when they were measured
};

// Whether a machine can have these values. Preempted ranks and damaged files yield others.
bool plausible(const Measurements& measured);

// Whether the samples agree. If not, other work disturbed them.
bool calm(const Measurements& measured);

// The measurements of an earlier communicator of this process, or calm ones of another process
// since the machine booted. Empty if they are unknown or tuning is off.
std::optional<Measurements> known_measurements();

// Whether a communicator should measure: no calm measurements are known, tuning is on, and this
// process has made few attempts.
bool measurement_wanted();

// Adopts measurements for this process if it has none or only disturbed ones with a larger spread,
// and its tuning is on.
void adopt_measurements(const Measurements& measured);

// Stores measurements, if they are calm, for other processes until the machine boots again, in
// HOSTNCCL_TUNING_FILE, else in hostnccl-tuning in XDG_RUNTIME_DIR, else in
// /tmp/hostnccl-tuning-UID. A file is used only if it is regular, belongs to this user, is
// inaccessible to all others, and was written since the machine booted. Errors are not reported:
// the measurement is then repeated.
void save_measurements(const Measurements& measured);

// How a collective moves data: each pair of ranks has a block of its own, all ranks receive the
// same blocks, one rank only sends or receives, or data is reduced.
enum class Pattern { Exchange, AllGather, Rooted, Reduction };
inline constexpr size_t kPatterns = 4;

// Minimum sizes, in bytes, for reading a peer's buffer directly instead of staging it, and for
// staging past the caches. A direct read within a process follows a pointer, so it pays off early.
struct Tuning {
  size_t direct[kPatterns];  // contribution of a rank to a collective
  size_t window;             // the same if the buffers lie in windows on all ranks
  size_t message;            // a message alone
  size_t exchange;           // a message in a group with other operations
  size_t message_in_process;
  // While other processes compete for the CPUs. [1]: ranks share them as well.
  size_t message_contended[2];
  size_t rooted_contended;  // contribution of the root, while ranks and others share the CPUs
  size_t stream;

  size_t direct_message(bool within_process, bool alone) const {
    return within_process ? message_in_process : alone ? message : exchange;
  }
};

// The values of this process: those of the environment, else those derived from measured.
Tuning tuning_from(const std::optional<Measurements>& measured, bool within_process);

// The time of a collective between two ranks in ns, extrapolated from the measured sizes.
struct PathTimes {
  double staged;
  double direct;  // 0 if the ranks cannot read each other's memory
};

// Empty for a reduction, which is not measured.
std::optional<PathTimes> path_times(const Measurements& measured, Pattern pattern,
                                    size_t contribution);

}  // namespace hostnccl
