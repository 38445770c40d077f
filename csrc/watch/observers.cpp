#include "watch/observers.h"

#include "comm/communicator.h"
#include "comm/graph.h"
#include "watch/comparison.h"
#include "watch/flight_dump.h"
#include "watch/monitor.h"
#include "watch/trace.h"

namespace pynccl {

void add_observers() {
  Communicator::observe();
  Graph::observe();
  Comparison::observe();
  FlightDump::observe();
  Monitor::observe();
  Trace::observe();
}

}  // namespace pynccl
