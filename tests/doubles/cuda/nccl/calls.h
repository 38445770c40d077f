// The implementations of libnccl.so.2's functions: Call<entry> for each entry of the list. A call
// is forwarded to the engine with the engine's handles. Entries affected by a rule have their own
// Call.
#pragma once

#include <functional>
#include <tuple>
#include <type_traits>

#include "nccl/operation.h"

namespace cuda_double {

// Counts a call in progress on a communicator.
class CallGuard {
 public:
  explicit CallGuard(CommunicatorRef communicator) : communicator_(std::move(communicator)) {
    if (communicator_) communicator_->calls.fetch_add(1);
  }
  ~CallGuard() {
    if (communicator_) communicator_->calls.fetch_sub(1);
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

 private:
  const CommunicatorRef communicator_;
};

// The engine's handle of a communicator. An unknown handle is returned unchanged, and the engine
// rejects it.
ncclComm_t engine_handle(ncclComm_t handle);

// Makes the communicator's device current for a scope, as NCCL does. Afterwards a thread that had
// no context has that of device 0, as after a CUDA runtime call.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope() { set_current(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Context* before_;
};
Context& current_or_first();

// Translates a configuration's events from the double's to the engine's.
class EngineConfig {
 public:
  explicit EngineConfig(const ncclCollConfig_t* given);
  const ncclCollConfig_t* get() const { return given_ ? &copy_ : nullptr; }
  bool valid() const { return valid_; }

 private:
  const ncclCollConfig_t* given_;
  ncclCollConfig_t copy_;
  EventRef event_;
  bool valid_ = true;
};

// Runs an operation: call takes the engine's communicator and stream.
template <class EngineCall>
ncclResult_t run_operation(const Arguments& arguments, ncclComm_t handle, cudaStream_t stream,
                           EngineCall&& call);
ncclResult_t begin_operation(const Arguments& arguments, ncclComm_t handle, cudaStream_t stream,
                             std::unique_ptr<Operation>& operation);
// The ranks of a first operation connect when its arguments are good. If they cannot, it is not
// issued.
ncclResult_t connect_and_issue(const Operation& operation,
                               const std::function<ncclResult_t()>& issue);
ncclResult_t end_operation(std::unique_ptr<Operation> operation, ncclResult_t result);

template <class EngineCall>
ncclResult_t run_operation(const Arguments& arguments, ncclComm_t handle, cudaStream_t stream,
                           EngineCall&& call) {
  const CommunicatorRef communicator = find_communicator(handle);
  if (!communicator) return call(handle, cudaStream_t());  // the engine rejects it
  const CallGuard guard(communicator);
  const DeviceScope scope(communicator->device);
  std::unique_ptr<Operation> operation;
  ncclResult_t result = begin_operation(arguments, handle, stream, operation);
  if (result != ncclSuccess) return communicator->refuse(result);
  const auto issue = [&] { return call(communicator->engine, operation->stream()->queue()); };
  result = operation->connects() ? connect_and_issue(*operation, issue) : issue();
  return communicator->refuse(end_operation(std::move(operation), result));
}

template <class T, class... All>
T first_of(T otherwise, const All&... all) {
  bool found = false;
  [[maybe_unused]] const auto look = [&](const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, T>) {
      if (!found) otherwise = value;
      found = true;
    }
  };
  (look(all), ...);
  return otherwise;
}

template <class T>
T translate(const T& value, ncclComm_t, cudaStream_t) {
  return value;
}
inline ncclComm_t translate(ncclComm_t, ncclComm_t comm, cudaStream_t) { return comm; }
inline cudaStream_t translate(cudaStream_t, ncclComm_t, cudaStream_t stream) { return stream; }

template <class... All>
Arguments arguments_of(const char* function, const All&... all) {
  Arguments arguments;
  arguments.function = function;
  arguments.send = first_of<const void*>(nullptr, all...);
  arguments.recv = first_of<void*>(nullptr, all...);
  arguments.count = first_of<size_t>(0, all...);
  arguments.dtype = first_of<ncclDataType_t>(ncclInt8, all...);
  arguments.op = first_of<ncclRedOp_t>(ncclSum, all...);
  arguments.peer = first_of<int>(-1, all...);
  return arguments;
}

template <class Result, class... All>
Result forward(const char* function, Result (*entry)(All...), All... all) {
  const auto handle = first_of<ncclComm_t>(nullptr, all...);
  if constexpr ((std::is_same_v<All, cudaStream_t> || ...)) {
    const EngineConfig config(first_of<const ncclCollConfig_t*>(nullptr, all...));
    if (!config.valid()) return ncclInvalidArgument;
    const auto engine_config = [&](const auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, const ncclCollConfig_t*>) {
        return config.get();
      } else {
        return value;
      }
    };
    return run_operation(arguments_of(function, all...), handle,
                         first_of<cudaStream_t>(nullptr, all...),
                         [&](ncclComm_t comm, cudaStream_t stream) {
                           return entry(translate(engine_config(all), comm, stream)...);
                         });
  } else {
    const CallGuard guard(find_communicator(handle));
    return entry(translate(all, engine_handle(handle), nullptr)...);
  }
}

template <auto Entry>
struct Call;

template <class Result, class... All, Result (*Table::*Entry)(All...)>
struct Call<Entry> {
  static Result run(const char* function, All... all) {
    return forward<Result, All...>(function, nccl().*Entry, all...);
  }
};

#define DOUBLE_OWN_CALL(result, name, ...)                     \
  template <>                                                  \
  struct Call<&Table::name> {                                  \
    static result run(const char* __VA_OPT__(, ) __VA_ARGS__); \
  }

DOUBLE_OWN_CALL(ncclResult_t, ncclGetVersion, int*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommInitRank, ncclComm_t*, int, ncclUniqueId, int);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommInitRankConfig, ncclComm_t*, int, ncclUniqueId, int,
                ncclConfig_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommInitRankScalable, ncclComm_t*, int, int, int, ncclUniqueId*,
                ncclConfig_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommInitAll, ncclComm_t*, int, const int*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommSplit, ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommShrink, ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*,
                int);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommGrow, ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*,
                ncclConfig_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommFinalize, ncclComm_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommDestroy, ncclComm_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommAbort, ncclComm_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommRevoke, ncclComm_t, int);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommGetAsyncError, ncclComm_t, ncclResult_t*);
DOUBLE_OWN_CALL(const char*, ncclGetErrorString, ncclResult_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommCount, ncclComm_t, int*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommUserRank, ncclComm_t, int*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommCuDevice, ncclComm_t, int*);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommQueryProperties, ncclComm_t, ncclCommProperties_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclMemAlloc, void**, size_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclMemFree, void*);
DOUBLE_OWN_CALL(ncclResult_t, ncclGroupStart);
DOUBLE_OWN_CALL(ncclResult_t, ncclGroupEnd);
DOUBLE_OWN_CALL(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t*);
DOUBLE_OWN_CALL(ncclResult_t, ncclPutSignal, const void*, size_t, ncclDataType_t, int, ncclWindow_t,
                size_t, int, int, unsigned, ncclComm_t, cudaStream_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclSignal, int, int, int, unsigned, ncclComm_t, cudaStream_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclWaitSignal, int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t);
DOUBLE_OWN_CALL(ncclResult_t, ncclCommWindowRegister, ncclComm_t, void*, size_t, ncclWindow_t*,
                int);

#undef DOUBLE_OWN_CALL

}  // namespace cuda_double
