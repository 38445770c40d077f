// Registers all observers of the process.
#pragma once

#include "comm/communicator.h"
#include "comm/graph.h"
#include "watch/comparison.h"
#include "watch/flight_dump.h"
#include "watch/monitor.h"
#include "watch/profiler_ranges.h"
#include "watch/trace.h"

namespace pynccl {

// Called once, when the module is loaded.
inline void add_observers() {
  Communicator::observe();
  Graph::observe();
  Comparison::observe();
  FlightDump::observe();
  Monitor::observe();
  ProfilerRanges::observe();  // before the trace: a range encloses the events of its operation
  Trace::observe();
}

}  // namespace pynccl
