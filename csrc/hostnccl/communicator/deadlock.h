// Deadlock detection: ranks that wait for each other forever, across several communicators,
// messages and streams.
//
// A process in which all threads that use communicators sleep can only be woken by the ranks that
// they wait for. It publishes these waits, with the time, in the RankStates of its ranks. A set of
// processes is deadlocked if all of them slept at one moment, and each thread waited for a process
// of the set. Nothing is published or read unless a thread sleeps for long.
//
// The waits of a process that shares no communicator with this one are relayed by those between
// them. A process that has failed publishes its failure instead, so that the errors of processes
// that wait for it name the reason.
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

  // Called occasionally by a sleeping thread. Returns the deadlock that it is part of, as an error.
  static std::optional<Error> check();

  // An operation of the communicator with this segment and label has ended with the error. If it is
  // that of a deadlock, the ranks that wait for this process in other communicators get it, too:
  // once this one continues, they see no deadlock.
  static void note_failure(const Segment& segment, int rank, const std::string& label,
                           const Error& error);

  // What the processes wait for or have failed with, and those that they wait for, for the error of
  // a rank that waits for them. May be empty.
  static std::string reasons(const std::vector<ProcessId>& processes);
  static std::string reasons_of_this_process();
};

}  // namespace hostnccl
