// The driver API: the CUDA driver calls that pynccl uses, with the same semantics for CPU memory,
// and host instead of cu in the name. There is one device, 0: the CPUs of this machine.
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "abi/driver_types.h"
#include "hostnccl/segment/memory.h"
#include "hostnccl/streams/capture.h"
#include "hostnccl/streams/device_error.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/graph.h"
#include "hostnccl/streams/stream.h"

#include "abi/c_params.inc"
#define FUNCTION(symbol, result, name, ...)                                 \
  namespace pynccl::abi {                                                   \
  extern "C" [[gnu::visibility("default")]] result host##name(__VA_ARGS__); \
  }
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

using namespace hostnccl;

namespace pynccl::abi {
namespace {

// Runs body and returns its error as a CUresult.
template <typename Body>
CUresult driver_guarded(Body&& body) noexcept {
  try {
    body();
    return CUDA_SUCCESS;
  } catch (const DeviceError& error) {
    error.remember();
    return error.result();
  } catch (const std::bad_alloc&) {
    remember_error(current_error().text());
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    remember_unknown(current_error());
    return CUDA_ERROR_UNKNOWN;
  }
}

// The object of a handle. Throws CUDA_ERROR_INVALID_HANDLE if the handle is not open.
template <typename T>
Ref<T> object_of(const void* handle) {
  Ref<T> object = handles<T>().find(handle);
  require(object && object->is_of_this_process(), CUDA_ERROR_INVALID_HANDLE);
  return object;
}

// Closes a handle and returns its object, which may belong to the parent process.
template <typename T>
Ref<T> close_handle(const void* handle) {
  Ref<T> object = handles<T>().find(handle);
  require(object && handles<T>().close(object), CUDA_ERROR_INVALID_HANDLE);
  return object;
}

// Opens a handle of a new object.
template <typename Handle, typename T>
Handle open_handle(std::unique_ptr<T> object) {
  return reinterpret_cast<Handle>(handles<T>().open(std::move(object)).slot());
}

// Null for the default streams, which are the calling thread.
Ref<Stream> stream_of(CUstream handle) {
  if (is_calling_thread(handle)) return {};
  return object_of<Stream>(handle);
}

template <typename T>
T* non_null(T* pointer) {
  require(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
  return pointer;
}

void run_or_enqueue(const Ref<Stream>& stream, Stream::Callback callback) {
  if (stream && stream->capturing()) {
    Capture::add_node({stream},
                      [callback = std::move(callback)](const SharedFailure&) { callback(); });
  } else if (stream) {
    Stream::enqueue(stream, std::move(callback));
  } else {
    try {
      callback();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      throw DeviceError(std::make_shared<StreamFailure>(current_error()), "");
    }
  }
}

thread_local std::optional<Error> function_failure;

// Calls a host function. Throws the failure that it reported by hostFailFunction().
void run_function(CUhostFn function, void* data) {
  function_failure.reset();
  function(data);
  if (const auto failure = std::exchange(function_failure, std::nullopt)) throw Error(*failure);
}

constexpr int kDriverVersion = 13000;  // the CUDA version with the semantics of these functions

void require_device(CUdevice device) { require(device == 0, CUDA_ERROR_INVALID_DEVICE); }

CUcontext device_context() {
  static char context;
  return reinterpret_cast<CUcontext>(&context);
}

std::string cpu_name() {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

CUresult set_text(const char** text, const char* known) {
  return driver_guarded([=] {
    *non_null(text) = known;
    require(known != nullptr, CUDA_ERROR_INVALID_VALUE);
  });
}

// For queries and synchronization, which cannot be captured.
void check_capture_allows_sync(const Ref<Stream>& stream) {
  Capture::check_not_capturing(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Capture::check_unsafe_call();
}

// The record to query or wait for. Null if the event was never recorded.
std::shared_ptr<EventRecord> checked_record(const Ref<Event>& event) {
  const auto record = event->last_record();
  Capture::check_not_captured(record.get());
  Capture::check_unsafe_call();
  return record;
}

void require_mode(CUstreamCaptureMode mode) {
  require(mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

extern "C" {

CUresult hostInit(unsigned int flags) {
  return driver_guarded([=] { require(flags == 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostDriverGetVersion(int* version) {
  return driver_guarded([=] { *non_null(version) = kDriverVersion; });
}

CUresult hostGetErrorName(CUresult error, const char** text) {
  return set_text(text, device_error_name(error));
}

CUresult hostGetErrorString(CUresult error, const char** text) {
  return set_text(text, device_error_text(error));
}

CUresult hostDeviceGetCount(int* count) {
  return driver_guarded([=] { *non_null(count) = 1; });
}

CUresult hostDeviceGet(CUdevice* device, int ordinal) {
  return driver_guarded([=] {
    require_device(ordinal);
    *non_null(device) = 0;
  });
}

CUresult hostDeviceGetName(char* name, int len, CUdevice device) {
  return driver_guarded([=] {
    require_device(device);
    require(len > 0, CUDA_ERROR_INVALID_VALUE);
    const std::string text = cpu_name().substr(0, static_cast<size_t>(len) - 1);
    std::memcpy(non_null(name), text.c_str(), text.size() + 1);
  });
}

// The device has one context, and it is always current.
CUresult hostDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return driver_guarded([=] {
    require_device(device);
    *non_null(context) = device_context();
  });
}

CUresult hostCtxGetCurrent(CUcontext* context) {
  return driver_guarded([=] { *non_null(context) = device_context(); });
}

CUresult hostCtxSetCurrent(CUcontext context) {
  return driver_guarded([=] {
    require(context == nullptr || context == device_context(), CUDA_ERROR_INVALID_VALUE);
  });
}

CUresult hostCtxGetDevice(CUdevice* device) {
  return driver_guarded([=] { *non_null(device) = 0; });
}

CUresult hostStreamGetCtx(CUstream stream, CUcontext* context) {
  return driver_guarded([=] {
    static_cast<void>(stream_of(stream));
    *non_null(context) = device_context();
  });
}

CUresult hostCtxSynchronize() {
  return driver_guarded([] {
    Capture::check_unsafe_call();
    Capture::check_nothing_captured();
    Stream::synchronize_all();
  });
}

CUresult hostPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return driver_guarded([=] {
    require(ptr != 0, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(non_null(data)) = CU_MEMORYTYPE_HOST;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(non_null(data)) = 0;
        return;
    }
    throw DeviceError(CUDA_ERROR_NOT_SUPPORTED);
  });
}

// Only for allocations of ncclMemAlloc.
CUresult hostMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr ptr) {
  return driver_guarded([=] {
    const auto allocation = find_allocation(reinterpret_cast<const void*>(ptr), 1);
    require(allocation != nullptr, CUDA_ERROR_INVALID_VALUE);
    if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(allocation->base());
    if (bytes != nullptr) *bytes = allocation->bytes();
  });
}

// The base of an allocation is its handle. Nothing is retained, because memory files are not shared
// through handles.
CUresult hostMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return driver_guarded([=] {
    const auto allocation = find_allocation(address, 1);
    require(allocation != nullptr, CUDA_ERROR_INVALID_VALUE);
    *non_null(handle) = reinterpret_cast<CUmemGenericAllocationHandle>(allocation->base());
  });
}

CUresult hostMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_guarded([=] { require(handle != 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    if (bytes == 0) return;
    require(dst != 0 && src != 0, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(target, [=] {
      std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    });
  });
}

CUresult hostStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return driver_guarded([=] {
    non_null(stream);
    require((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    Delay::read_seed();
    *stream = open_handle<CUstream>(std::make_unique<Stream>(priority));
  });
}

CUresult hostStreamGetPriority(CUstream stream, int* priority) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    *non_null(priority) = target ? target->priority() : Stream::kLeastPriority;
  });
}

CUresult hostStreamDestroy(CUstream stream) {
  return driver_guarded([=] {
    require(!is_calling_thread(stream), CUDA_ERROR_INVALID_HANDLE);
    const Ref<Stream> target = close_handle<Stream>(stream);
    Capture::on_stream_destroyed(target);
    if (target->is_of_this_process()) target->close();
  });
}

CUresult hostStreamSynchronize(CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    check_capture_allows_sync(target);
    if (!target) return;
    const uint32_t taken = target->taken();
    target->synchronize();
    check_no_failure(target->take_failure(taken));
  });
}

CUresult hostStreamQuery(CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    check_capture_allows_sync(target);
    if (!target) return;
    const uint32_t taken = target->taken();
    require(target->idle(), CUDA_ERROR_NOT_READY);
    check_no_failure(target->take_failure(taken));
  });
}

CUresult hostStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return driver_guarded([=] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Stream> target = stream_of(stream);
    stream_wait(target, object_of<Event>(event)->last_record());
  });
}

CUresult hostLaunchHostFunc(CUstream stream, CUhostFn function, void* userData) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    require(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(target, [=] { run_function(function, userData); });
  });
}

/// Called in a host function: marks it, and the work that depends on it, as failed.
[[gnu::visibility("default")]] void hostFailFunction(ncclResult_t result, const char* text,
                                                     const void* origin) {
  if (!function_failure) function_failure = Error(result, text).set_origin(origin);
}

CUresult hostEventCreate(CUevent* event, unsigned int flags) {
  return driver_guarded([=] {
    non_null(event);
    constexpr unsigned kBlockingSync = 1;  // CU_EVENT_BLOCKING_SYNC, as every wait works here
    require((flags & ~(CU_EVENT_DISABLE_TIMING | kBlockingSync)) == 0, CUDA_ERROR_INVALID_VALUE);
    const bool timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    *event = open_handle<CUevent>(std::make_unique<Event>(timing));
  });
}

CUresult hostEventDestroy(CUevent event) {
  return driver_guarded([=] { close_handle<Event>(event); });
}

CUresult hostEventRecord(CUevent event, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    object_of<Event>(event)->record(target);
  });
}

CUresult hostEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    require((flags & ~CU_EVENT_RECORD_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Event> recorded = object_of<Event>(event);
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0)
      Event::record_external(recorded, target);
    else
      recorded->record(target);
  });
}

CUresult hostEventQuery(CUevent event) {
  return driver_guarded([=] {
    const auto record = checked_record(object_of<Event>(event));
    if (record == nullptr) return;
    require(record->done(), CUDA_ERROR_NOT_READY);
    check_no_failure(record->failure());
  });
}

CUresult hostEventSynchronize(CUevent event) {
  return driver_guarded([=] {
    const auto record = checked_record(object_of<Event>(event));
    if (record == nullptr) return;
    record->wait();
    check_no_failure(record->failure());
  });
}

CUresult hostEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return driver_guarded([=] {
    non_null(milliseconds);
    const Ref<Event> first = object_of<Event>(start);
    const Ref<Event> second = object_of<Event>(end);
    const auto began = checked_record(first);
    const auto ended = checked_record(second);
    require(first->timing() && second->timing() && began && ended, CUDA_ERROR_INVALID_HANDLE);
    require(began->done() && ended->done(), CUDA_ERROR_NOT_READY);
    *milliseconds = std::chrono::duration<float, std::milli>(ended->time() - began->time()).count();
  });
}

CUresult hostThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return driver_guarded([=] {
    require_mode(*non_null(mode));
    *mode = Capture::exchange_thread_mode(*mode);
  });
}

CUresult hostStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return driver_guarded([=] {
    require_mode(mode);
    Capture::begin(stream_of(stream), mode);
  });
}

CUresult hostStreamEndCapture(CUstream stream, CUgraph* graph) {
  return driver_guarded([=] {
    *non_null(graph) = nullptr;
    *graph = open_handle<CUgraph>(Capture::end(stream_of(stream)));
  });
}

CUresult hostStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return driver_guarded([=] { *non_null(status) = Capture::info(stream_of(stream)).status; });
}

CUresult hostStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                  CUgraph* graph, const CUgraphNode** dependencies,
                                  size_t* numDependencies) {
  return driver_guarded([=] {
    const bool asks_for_nodes =
        graph != nullptr || dependencies != nullptr || numDependencies != nullptr;
    require(!asks_for_nodes, CUDA_ERROR_NOT_SUPPORTED);
    const Capture::Info info = Capture::info(stream_of(stream));
    *non_null(status) = info.status;
    if (id != nullptr) *id = info.id;
  });
}

CUresult hostGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* numNodes) {
  return driver_guarded([=] {
    const Ref<Graph> target = object_of<Graph>(graph);
    require(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);  // nodes have no handles
    *non_null(numNodes) = target->nodes().size();
  });
}

CUresult hostGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return driver_guarded([=] {
    non_null(exec);
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    *exec = open_handle<CUgraphExec>(std::make_unique<GraphExec>(object_of<Graph>(graph)));
  });
}

CUresult hostGraphLaunch(CUgraphExec exec, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    Capture::check_not_capturing(target, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    object_of<GraphExec>(exec)->launch(target);
  });
}

CUresult hostGraphExecDestroy(CUgraphExec exec) {
  return driver_guarded([=] { close_handle<GraphExec>(exec); });
}

CUresult hostGraphDestroy(CUgraph graph) {
  return driver_guarded([=] { close_handle<Graph>(graph); });
}

}  // extern "C"

}  // namespace pynccl::abi
