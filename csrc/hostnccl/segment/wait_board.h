// The waits of a process's threads, published in shared memory while all of them sleep: see
// communicator/deadlock.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "hostnccl/base/process.h"

namespace hostnccl {

// One wait of a thread. The text describes it completely; empty for a wait within the process.
struct PublishedWait {
  uint64_t thread;
  ProcessId owner;    // that can end it
  uint64_t identity;  // of the segment; 0: none
  int rank;           // that waits
  char text[220];

  void set_text(const std::string& from) { std::strncpy(text, from.c_str(), sizeof text - 1); }
};

inline constexpr size_t kPublishedWaits = 16;  // of a process

// All threads of the process slept from since to confirmed, in nanoseconds of Clock.
struct ProcessWaits {
  ProcessId process;
  int64_t since;
  int64_t confirmed;
  uint64_t count;  // of waits
  PublishedWait waits[kPublishedWaits];

  std::span<const PublishedWait> all() const { return {waits, count}; }
};

// The waits of a process, followed by those of some processes that it waits for. One process
// writes, any process reads.
class WaitBoard {
 public:
  static constexpr size_t kProcesses = 8;

  void write(std::span<const ProcessWaits> processes);  // the first kProcesses
  std::vector<ProcessWaits> read() const;               // none while it is being written

 private:
  std::atomic<uint64_t> version_;  // odd while it is being written
  std::atomic<uint64_t> count_;
  ProcessWaits processes_[kProcesses];
};

}  // namespace hostnccl
