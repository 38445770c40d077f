// The calls of the CUDA driver API that pynccl uses, for CPU memory: the same names with host in
// place of cu, the same meanings. There is one device, 0, which is this machine's CPU.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "abi/driver_types.h"
#include "hostnccl/event.h"
#include "hostnccl/stream.h"

using namespace pynccl::abi;
using namespace hostnccl;

#include "abi/c_params.inc"
#define FUNCTION(symbol, result, name, ...) \
  extern "C" [[gnu::visibility("default")]] result host##name(__VA_ARGS__);
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

namespace {

constexpr int kDriverVersion = 13000;  // whose semantics these are

// A failed check, as the result to return.
struct Refused {
  CUresult result;
};

void require(bool holds, CUresult otherwise) {
  if (!holds) throw Refused{otherwise};
}

template <typename Body>
CUresult checked(Body&& body) noexcept {
  try {
    body();
    return CUDA_SUCCESS;
  } catch (const Refused& refused) {
    return refused.result;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    remember_error(current_error().text());
    return CUDA_ERROR_UNKNOWN;
  }
}

// None for the streams that are the calling thread.
Ref<Stream> find(CUstream handle) {
  if (is_calling_thread(handle)) return {};
  Ref<Stream> stream = streams().find(handle);
  require(stream && stream->is_of_this_process(), CUDA_ERROR_INVALID_HANDLE);
  return stream;
}

Ref<Event> find(CUevent handle) {
  Ref<Event> event = events().find(handle);
  require(event && event->is_of_this_process(), CUDA_ERROR_INVALID_HANDLE);
  return event;
}

template <typename T>
T* out(T* pointer) {
  require(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
  return pointer;
}

void run_or_enqueue(const Ref<Stream>& stream, Stream::Work work) {
  if (stream) {
    Stream::enqueue(stream, std::move(work));
  } else {
    work();
  }
}

// An operation that failed in the queue shows once, here; its communicator keeps the reason.
void report_failure(Stream& stream) { require(!stream.take_failure(), CUDA_ERROR_UNKNOWN); }

void require_device(CUdevice device) { require(device == 0, CUDA_ERROR_INVALID_DEVICE); }

CUcontext the_context() {
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

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};

const ErrorText* error_text(CUresult result) {
  static constexpr ErrorText kTexts[] = {
      {CUDA_SUCCESS, "CUDA_SUCCESS", "success"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid value"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "not initialised"},
      {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device"},
      {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "no such device: there is only 0"},
      {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE",
       "the handle is not, or no longer, a stream or event of this process"},
      {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "not ready: work is still queued"},
      {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "not supported on CPUs"},
      {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN",
       "work queued on the stream failed; ncclCommGetAsyncError of its communicator has the "
       "reason"},
  };
  const auto* found = std::find_if(std::begin(kTexts), std::end(kTexts),
                                   [result](const ErrorText& e) { return e.result == result; });
  return found == std::end(kTexts) ? nullptr : found;
}

CUresult describe(CUresult error, const char** text, const char* ErrorText::* field) {
  return checked([=] {
    const ErrorText* found = error_text(error);
    *out(text) = found != nullptr ? found->*field : nullptr;
    require(found != nullptr, CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace

extern "C" {

CUresult hostInit(unsigned int flags) {
  return checked([=] { require(flags == 0, CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostDriverGetVersion(int* version) {
  return checked([=] { *out(version) = kDriverVersion; });
}

CUresult hostGetErrorName(CUresult error, const char** text) {
  return describe(error, text, &ErrorText::name);
}

CUresult hostGetErrorString(CUresult error, const char** text) {
  return describe(error, text, &ErrorText::text);
}

CUresult hostDeviceGetCount(int* count) {
  return checked([=] { *out(count) = 1; });
}

CUresult hostDeviceGet(CUdevice* device, int ordinal) {
  return checked([=] {
    require_device(ordinal);
    *out(device) = 0;
  });
}

CUresult hostDeviceGetName(char* name, int len, CUdevice device) {
  return checked([=] {
    require_device(device);
    require(len > 0, CUDA_ERROR_INVALID_VALUE);
    const std::string text = cpu_name().substr(0, static_cast<size_t>(len) - 1);
    std::memcpy(out(name), text.c_str(), text.size() + 1);
  });
}

CUresult hostDeviceTotalMem(size_t* bytes, CUdevice device) {
  return checked([=] {
    require_device(device);
    *out(bytes) =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  });
}

// The device has one context, which is always current.
CUresult hostDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return checked([=] {
    require_device(device);
    *out(context) = the_context();
  });
}

CUresult hostDevicePrimaryCtxRelease(CUdevice device) {
  return checked([=] { require_device(device); });
}

CUresult hostCtxGetCurrent(CUcontext* context) {
  return checked([=] { *out(context) = the_context(); });
}

CUresult hostCtxSetCurrent(CUcontext context) {
  return checked(
      [=] { require(context == nullptr || context == the_context(), CUDA_ERROR_INVALID_VALUE); });
}

CUresult hostCtxGetDevice(CUdevice* device) {
  return checked([=] { *out(device) = 0; });
}

CUresult hostPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return checked([=] {
    require(ptr != 0, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(out(data)) = CU_MEMORYTYPE_HOST;
        return;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(out(data)) = 0;
        return;
    }
    throw Refused{CUDA_ERROR_NOT_SUPPORTED};
  });
}

CUresult hostMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    if (bytes == 0) return;
    require(dst != 0 && src != 0, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(queue, [=] {
      std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    });
  });
}

CUresult hostStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  return checked([=] {
    out(stream);
    require((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    *stream = reinterpret_cast<CUstream>(streams().open(std::make_unique<Stream>()).slot());
  });
}

CUresult hostStreamDestroy(CUstream stream) {
  return checked([=] {
    require(!is_calling_thread(stream), CUDA_ERROR_INVALID_HANDLE);
    const Ref<Stream> queue = streams().find(stream);
    require(queue && streams().close(queue), CUDA_ERROR_INVALID_HANDLE);
    if (queue->is_of_this_process()) queue->close();
  });
}

CUresult hostStreamSynchronize(CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    if (!queue) return;
    queue->synchronize();
    report_failure(*queue);
  });
}

CUresult hostStreamQuery(CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    if (!queue) return;
    require(queue->idle(), CUDA_ERROR_NOT_READY);
    report_failure(*queue);
  });
}

CUresult hostStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return checked([=] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Stream> queue = find(stream);
    wait_for(queue, find(event)->last());
  });
}

CUresult hostStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return checked([=] {
    find(stream);
    *out(status) = CU_STREAM_CAPTURE_STATUS_NONE;
  });
}

CUresult hostLaunchHostFunc(CUstream stream, CUhostFn function, void* userData) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    require(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(queue, [=] { function(userData); });
  });
}

CUresult hostEventCreate(CUevent* event, unsigned int flags) {
  return checked([=] {
    out(event);
    const unsigned known = CU_EVENT_DISABLE_TIMING | 1u;  // 1: blocking synchronisation, as always
    require((flags & ~known) == 0, CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_unique<Event>((flags & CU_EVENT_DISABLE_TIMING) == 0);
    *event = reinterpret_cast<CUevent>(events().open(std::move(made)).slot());
  });
}

CUresult hostEventDestroy(CUevent event) {
  return checked([=] {
    const Ref<Event> found = events().find(event);
    require(found && events().close(found), CUDA_ERROR_INVALID_HANDLE);
  });
}

CUresult hostEventRecord(CUevent event, CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    find(event)->record(queue);
  });
}

CUresult hostEventQuery(CUevent event) {
  return checked([=] {
    const auto record = find(event)->last();
    require(record == nullptr || record->done(), CUDA_ERROR_NOT_READY);
  });
}

CUresult hostEventSynchronize(CUevent event) {
  return checked([=] {
    if (const auto record = find(event)->last()) record->wait();
  });
}

CUresult hostEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return checked([=] {
    out(milliseconds);
    const Ref<Event> from = find(start);
    const Ref<Event> to = find(end);
    const auto began = from->last();
    const auto ended = to->last();
    require(from->timing() && to->timing() && began && ended, CUDA_ERROR_INVALID_HANDLE);
    require(began->done() && ended->done(), CUDA_ERROR_NOT_READY);
    *milliseconds = std::chrono::duration<float, std::milli>(ended->time() - began->time()).count();
  });
}

}  // extern "C"
