// WaitBoard: the waits of a process's threads, published in shared memory while all of them sleep.
// See communicator/waits.h.
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

// One wait of a thread, with a complete description. The text of a wait within the process is
// empty.
struct PublishedWait {
  uint64_t thread;
  ProcessId owner;    // the process that can end the wait
  uint64_t identity;  // of the segment. 0: none
  int rank;           // the waiting rank
  char text[220];

  void set_text(const std::string& from) { std::strncpy(text, from.c_str(), sizeof text - 1); }
};

inline constexpr size_t kPublishedWaits = 16;  // of a process

// The waits of a process. All of its threads slept from since to confirmed, in nanoseconds of
// Clock.
struct ProcessWaits {
  ProcessId process;
  int64_t since;
  int64_t confirmed;
  uint64_t count;  // of waits
  PublishedWait waits[kPublishedWaits];

  std::span<const PublishedWait> all() const { return {waits, count}; }
};

// The waits of a process, followed by those of some processes for which it waits. One process
// writes, any process reads.
class WaitBoard {
 public:
  static constexpr size_t kProcesses = 8;

  void write(std::span<const ProcessWaits> processes);  // the first kProcesses
  std::vector<ProcessWaits> read() const;               // empty during a write

 private:
  std::atomic<uint64_t> version_;  // odd during a write
  std::atomic<uint64_t> count_;
  ProcessWaits processes_[kProcesses];
};

}  // namespace hostnccl
