// One-sided operations, and the windows that they need.
#include <algorithm>
#include <utility>

#include "driver/driver.h"
#include "driver/settings.h"
#include "nccl/calls.h"

namespace cuda_double {
namespace {

constexpr int kOneSidedDriver = 12050;
constexpr int kManySignals = 23100;    // earlier, only signal 0 and context 0
constexpr int kSetUpByWindow = 23100;  // earlier, the first operation sets them up on all ranks

ncclResult_t check(int signal, int context) {
  if (setting("NCCL_DOUBLE_ONE_SIDED", 1) == 0) return ncclInvalidArgument;
  int driver = 0;
  driver::DriverGetVersion(&driver);
  if (driver < kOneSidedDriver) return ncclInvalidUsage;
  const bool first = signal == 0 && context == 0;
  return first || kNcclVersion >= kManySignals ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t set_up(ncclComm_t handle) {
  const CommunicatorRef communicator = find_communicator(handle);
  if (!communicator || kNcclVersion >= kSetUpByWindow) return ncclSuccess;
  communicator->learn();
  Group& group = Group::of_this_thread();
  group.one_sided.push_back(communicator);
  return group.depth > 0 ? ncclSuccess : group.set_up_one_sided();
}

}  // namespace

ncclResult_t Group::set_up_one_sided() {
  const std::vector<CommunicatorRef> all = std::exchange(one_sided, {});
  for (const CommunicatorRef& communicator : all)
    if (communicator->peers) communicator->peers->set_up();
  const auto done = [](const CommunicatorRef& communicator) {
    return !communicator->peers || communicator->peers->wait_set_up(communicator->aborted);
  };
  return std::all_of(all.begin(), all.end(), done) ? ncclSuccess : ncclInternalError;
}

ncclResult_t Call<&Table::ncclPutSignal>::run(const char* function, const void* source,
                                              size_t count, ncclDataType_t dtype, int peer,
                                              ncclWindow_t window, size_t offset, int signal,
                                              int context, unsigned flags, ncclComm_t comm,
                                              cudaStream_t stream) {
  if (const ncclResult_t wrong = check(signal, context); wrong != ncclSuccess) return wrong;
  if (const ncclResult_t failed = set_up(comm); failed != ncclSuccess) return failed;
  return forward(function, nccl().ncclPutSignal, source, count, dtype, peer, window, offset, signal,
                 context, flags, comm, stream);
}

ncclResult_t Call<&Table::ncclSignal>::run(const char* function, int peer, int signal, int context,
                                           unsigned flags, ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t wrong = check(signal, context); wrong != ncclSuccess) return wrong;
  if (const ncclResult_t failed = set_up(comm); failed != ncclSuccess) return failed;
  return forward(function, nccl().ncclSignal, peer, signal, context, flags, comm, stream);
}

ncclResult_t Call<&Table::ncclWaitSignal>::run(const char* function, int count,
                                               ncclWaitSignalDesc_t* signals, ncclComm_t comm,
                                               cudaStream_t stream) {
  for (int i = 0; i < count; ++i)
    if (const ncclResult_t wrong = check(signals[i].sigIdx, signals[i].ctx); wrong != ncclSuccess)
      return wrong;
  if (const ncclResult_t failed = set_up(comm); failed != ncclSuccess) return failed;
  return forward(function, nccl().ncclWaitSignal, count, signals, comm, stream);
}

// A rank whose memory cannot be shared fails alone, while the others wait for it.
ncclResult_t Call<&Table::ncclCommWindowRegister>::run(const char* function, ncclComm_t comm,
                                                       void* memory, size_t size,
                                                       ncclWindow_t* window, int flags) {
  constexpr int kSinceChecks = 23000;  // 2.28 accepts null memory, and writes no handle in a group
  if (kNcclVersion < kSinceChecks && window != nullptr && (memory == nullptr || size == 0)) {
    *window = nullptr;
    return ncclSuccess;
  }
  const ncclWindow_t before = window ? *window : nullptr;
  CUmemGenericAllocationHandle allocation = 0;
  if (driver::MemRetainAllocationHandle(&allocation, memory) != CUDA_SUCCESS)
    return ncclInvalidArgument;
  driver::MemRelease(allocation);
  const ncclResult_t result =
      forward(function, nccl().ncclCommWindowRegister, comm, memory, size, window, flags);
  const bool in_group = Group::of_this_thread().depth > 0;
  if (in_group && kNcclVersion < kSinceChecks && window != nullptr) *window = before;
  if (result != ncclInProgress || in_group) return result;
  // NCCL's call is complete when it returns, even on a non-blocking communicator.
  const CommunicatorRef communicator = find_communicator(comm);
  communicator->wait_while_in_progress();
  return communicator->state();
}

}  // namespace cuda_double
