// Operations and groups.
#include "nccl/calls.h"

#include <strings.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>

namespace cuda_double {
namespace {

// Whether a selection such as "ring,tree" or "^nvls" names only NCCL algorithms.
bool selects_algorithms(std::string_view selection) {
  constexpr std::string_view kAlgorithms[] = {
      "ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"};
  if (selection.starts_with('^')) selection.remove_prefix(1);
  while (!selection.empty()) {
    const std::size_t comma = std::min(selection.find(','), selection.size());
    const std::string_view name = selection.substr(0, comma);
    if (std::none_of(std::begin(kAlgorithms), std::end(kAlgorithms), [&](std::string_view known) {
          return known.size() == name.size() &&
                 strncasecmp(known.data(), name.data(), name.size()) == 0;
        }))
      return false;
    selection.remove_prefix(std::min(comma + 1, selection.size()));
  }
  return true;
}

}  // namespace

ncclComm_t engine_handle(ncclComm_t handle) {
  const CommunicatorRef communicator = find_communicator(handle);
  return communicator ? communicator->engine : handle;
}

Context& current_or_first() {
  if (current() == nullptr) {
    context_of(0).retain();
    set_current(&context_of(0));
  }
  return *current();
}

DeviceScope::DeviceScope(int device) : before_(&current_or_first()) {
  if (!context_of(device).active()) context_of(device).retain();
  set_current(&context_of(device));
}

EngineConfig::EngineConfig(const ncclCollConfig_t* given) : given_(given) {
  if (given == nullptr) return;
  constexpr size_t kField = offsetof(ncclCollConfig_t, launchCompletionEvent);
  std::memcpy(static_cast<void*>(&copy_), given, std::min(given->size, sizeof copy_));
  // The engine has other algorithms. Which one runs does not matter here.
  if (copy_.algSelection != nullptr && selects_algorithms(copy_.algSelection))
    copy_.algSelection = nullptr;
  if (given->size <= kField || copy_.launchCompletionEvent == nullptr) return;
  event_ = find_event(copy_.launchCompletionEvent);
  valid_ = event_ != nullptr;
  if (valid_) copy_.launchCompletionEvent = event_->event;
}

ncclResult_t begin_operation(const Arguments& arguments, ncclComm_t handle, cudaStream_t stream,
                             std::unique_ptr<Operation>& operation) {
  const CommunicatorRef communicator = find_communicator(handle);
  Group& group = Group::of_this_thread();
  if (const ncclResult_t refused = communicator->unready(); refused != ncclSuccess) {
    if (group.depth > 0) Group::fail();
    return refused;
  }
  const bool float8 = arguments.dtype == ncclFloat8e4m3 || arguments.dtype == ncclFloat8e5m2;
  const bool alone = communicator->nranks == 1 && arguments.count != 0;
  if (alone && float8 && arguments.op >= ncclAvg) {  // there is no kernel
    if (group.depth > 0) Group::fail();
    return ncclInvalidArgument;
  }
  const Found found = find_stream(stream);
  // A launch on a stream of another device fails.
  if (!found.stream || found.stream->context().device() != communicator->device)
    return ncclUnhandledCudaError;
  operation = std::make_unique<Operation>(communicator, found.stream, arguments);
  if (group.depth > 0) return ncclSuccess;
  return found.stream->before_work() == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t connect_and_issue(const Operation& operation,
                               const std::function<ncclResult_t()>& issue) {
  if (Group::of_this_thread().depth > 0) return issue();
  nccl().ncclGroupStart();  // the engine's
  const ncclResult_t result = issue();
  bool connected = true;
  if (result == ncclSuccess) {
    operation.connect();
    connected = operation.communicator()->wait_connected();
    if (!connected) Group::fail_engine();
  }
  const ncclResult_t ended = nccl().ncclGroupEnd();
  if (!connected) return ncclInternalError;
  return result == ncclSuccess ? ended : result;
}

ncclResult_t end_operation(std::unique_ptr<Operation> operation, ncclResult_t result) {
  Group& group = Group::of_this_thread();
  if (result != ncclSuccess && result != ncclInProgress) {
    operation->cancel();
    if (group.depth > 0) group.failed = true;
    return result;
  }
  if (group.depth > 0) {
    operation->communicator()->calls.fetch_add(1);
    group.communicators.push_back(operation->communicator());
    group.operations.push_back(std::move(*operation));
    return result;
  }
  Operation::issue({operation.get(), 1});
  operation->stream()->after_work();
  return operation->communicator()->begin_progress(operation->message()) ? ncclInProgress : result;
}

ncclResult_t Call<&Table::ncclGroupStart>::run(const char*) {
  // 2.18 has one unfinished group per thread, and a creation counts as one.
  if (kNcclVersion < 22400 && Group::of_this_thread().creates()) return ncclInvalidUsage;
  const ncclResult_t result = nccl().ncclGroupStart();
  if (result == ncclSuccess) ++Group::of_this_thread().depth;
  return result;
}

ncclResult_t Call<&Table::ncclGroupEnd>::run(const char*) {
  Group& group = Group::of_this_thread();
  if (group.depth != 1) {
    const ncclResult_t result = nccl().ncclGroupEnd();
    if (group.depth > 0) --group.depth;
    return result;
  }
  const ncclResult_t set_up = group.set_up_one_sided();
  std::vector<StreamRef> streams;
  for (const Operation& operation : group.operations)
    if (std::find(streams.begin(), streams.end(), operation.stream()) == streams.end())
      streams.push_back(operation.stream());
  const bool connected = group.failed || group.connect();
  if (!connected) Group::fail_engine();  // nothing is issued
  for (const StreamRef& stream : streams) stream->before_work();
  group.depth = 0;
  ncclResult_t result = nccl().ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) {
    Operation::issue(group.operations);
    if (group.begin_progress()) result = ncclInProgress;
    group.operations.clear();
  }
  if (!connected) result = ncclInternalError;
  for (const StreamRef& stream : streams) stream->after_work();
  const ncclResult_t created = group.clear();
  if (result == ncclSuccess) result = set_up;
  return result == ncclSuccess ? created : result;
}

ncclResult_t Call<&Table::ncclGroupSimulateEnd>::run(const char*, ncclSimInfo_t* simInfo) {
  Group& group = Group::of_this_thread();
  const ncclResult_t result = nccl().ncclGroupSimulateEnd(simInfo);
  if (result == ncclSuccess && group.depth == 1)
    for (const Operation& operation : group.operations) operation.simulate();
  if (group.depth > 0 && --group.depth == 0) group.clear();
  return result;
}

}  // namespace cuda_double
