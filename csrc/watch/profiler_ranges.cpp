#include "watch/profiler_ranges.h"

#include "comm/flight_recorder.h"

namespace pynccl {

class ProfilerRanges::Sink final : public Observer {
 public:
  std::unique_ptr<Observation> called(const OperationEvent& event) override {
    if (!on()) return nullptr;
    return std::make_unique<ProfilerRange>(
        Call{kind_name(event.kind), profiled_bytes(event.operation), &event.communicator});
  }
};

void ProfilerRanges::observe() { Observers::add(*new Sink, Observers::kCalled); }

void ProfilerRanges::set(Open open, Close close) {
  if (close) close_.store(close, std::memory_order_relaxed);  // kept for the open ranges
  const Open before = open_.exchange(open, std::memory_order_release);
  if (open && !before) Observers::observe_operations();
  if (!open && before) Observers::stop_operations();
}

std::uint64_t profiled_bytes(const Operation& operation) {
  const OperationKind kind = plain(operation.kind);
  if (kind == OperationKind::kSignal || kind == OperationKind::kWaitSignal) return 0;
  return std::uint64_t{operation.count} * element_size(operation.dtype);
}

}  // namespace pynccl
