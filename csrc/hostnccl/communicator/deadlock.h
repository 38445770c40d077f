// Deadlocks: detects ranks that wait for each other forever, across several communicators, messages
// and streams.
//
// If all threads of a process that use communicators sleep, only the ranks that they wait for can
// wake it. The process publishes these waits, with the time, in the RankStates of its ranks. A set
// of processes is deadlocked if all of them slept at one moment, and each thread waited for a
// process of the set. Nothing is published or read unless a thread sleeps for long.
//
// Processes relay the waits of others, because two processes of a deadlock may share no
// communicator. A process that has failed publishes its failure instead, and the errors of
// processes that wait for it name the reason.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class Deadlocks {
 public:
  // Publishes the waits of this process in the segment, as those of this rank, until remove().
  static void add(std::shared_ptr<Segment> segment, int rank);
  static void remove(const Segment& segment, int rank);

  // Called occasionally by a sleeping thread. Returns the deadlock of which it is part, as an
  // error.
  static std::optional<Error> check();

  // Called when an operation of the communicator with this segment and label has failed. If the
  // error is a deadlock, the ranks that wait for this process in other communicators get it as
  // well: they cannot detect the deadlock once this process continues.
  static void note_failure(const Segment& segment, int rank, const std::string& label,
                           const Error& error);

  // The waits or failures of the processes, and of those for which they wait, for the error of a
  // rank that waits for them. May be empty.
  static std::string reasons(const std::vector<ProcessId>& processes);
  static std::string reasons_of_this_process();
};

}  // namespace hostnccl
