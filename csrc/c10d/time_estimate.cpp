// Time estimates: operations between startTimeEstimate() and endTimeEstimate() are not run; NCCL
// estimates their time.
#include "backend.h"

namespace pynccl::dist {
namespace {

double seconds_of(const Operation& operation, CommunicatorRef& comm) {
  const std::string name = std::string("time estimate: ") + name_of(operation);
  double seconds;
  try {
    seconds = comm.simulate(operation.calls.data(), operation.calls.size());
  } catch (const NcclError& error) {
    throw_backend_error(name + ": " + error.what());
  }
  if (seconds < 0) throw_backend_error(name + ": NCCL does not provide one");
  return seconds;
}

}  // namespace

// Discards an unfinished estimate: torch's _time_estimator does not end it after an exception.
void PyncclBackend::startTimeEstimate() {
  std::vector<Estimated> before;  // destroyed without the lock
  const std::scoped_lock lock(mutex_);
  std::swap(before, estimated_);
  estimating_ = true;
}

WorkPtr PyncclBackend::estimated(const at::Device& device, Operation operation) {
  const auto timeout = timeout_of(operation);
  Operation done;  // its results are the operation's outputs, unchanged
  done.type = operation.type;
  done.title = operation.title;
  done.outputs = operation.outputs;
  done.number = number_;
  done.peer = operation.peer;
  WorkPtr work = group_lane(device).work_without_issue(std::move(done), rank_, timeout);
  const std::scoped_lock lock(mutex_);
  estimated_.push_back({device, std::move(operation)});
  return work;
}

float PyncclBackend::endTimeEstimate() {
  std::vector<Estimated> all;
  {
    const std::scoped_lock lock(mutex_);
    TORCH_CHECK_VALUE(estimating_, "time estimate: not started");
    estimating_ = false;
    std::swap(all, estimated_);
  }
  for (const Estimated& one : all)
    for (const PyncclOperation& call : one.operation.calls)
      TORCH_CHECK_VALUE(call.kind <= PYNCCL_REDUCE_SCATTER,
                        "time estimate: ", name_of(one.operation),
                        " consists of messages; NCCL estimates only "
                        "all_reduce, broadcast, reduce, all_gather and reduce_scatter");
  double sum = 0;
  without_gil([&] {
    for (const Estimated& one : all) {
      Lane& lane = group_lane(one.device);
      lane.run([&] { sum += seconds_of(one.operation, lane.connection().get()); });
    }
  });
  constexpr double kMicroseconds = 1e6;
  return static_cast<float>(sum * kMicroseconds);
}

}  // namespace pynccl::dist
