#include "driver/control.h"

#include <atomic>
#include <cstring>
#include <memory>

#include "driver/cache.h"
#include "driver/memory.h"
#include "driver/settings.h"
#include "driver/stream.h"

using namespace cuda_double;

namespace {

struct Kernel {
  CUhostFn function;
  void* data;
  MemoryUse use;
};

std::atomic<bool> stopped{false};

void run_kernel(void* data) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(data));
  take_time();
  if (!stopped.load()) kernel->function(kernel->data);
  kernel->use.end();
}

// A graph runs it repeatedly, so it is kept, and its owner manages its memory.
struct CapturedKernel {
  CUhostFn function;
  void* data;
};

void run_captured(void* data) {
  const auto* kernel = static_cast<CapturedKernel*>(data);
  if (!stopped.load()) kernel->function(kernel->data);
}

// Like a framework's guard: a thread without a context keeps that of the device.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(current()) {
    Context& context = context_of(device);
    if (!context.active()) context.retain();
    set_current(&context);
  }
  ~DeviceScope() {
    if (before_) set_current(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Context* const before_;
};

}  // namespace

extern "C" {

size_t cuda_double_violations() { return violation_count(); }

size_t cuda_double_violation(size_t index, char* text, size_t most) {
  const std::string found = violation(index);
  if (text != nullptr && most > 0) {
    std::strncpy(text, found.c_str(), most - 1);
    text[most - 1] = '\0';
  }
  return found.size();
}

void cuda_double_report(const char* text) { report_violation(text); }

void cuda_double_clear_violations() { clear_violations(); }

int cuda_double_busy(int device, CUstream handle, double seconds) {
  const DeviceScope scope(device);
  return on_stream(handle, [&](Stream& stream) { return keep_busy(stream, seconds); });
}

int cuda_double_launch(int device, CUstream handle, const char* name, CUhostFn function, void* data,
                       int buffers, void* const* addresses, const size_t* sizes) {
  const DeviceScope scope(device);
  return on_stream(handle, [&](Stream& stream) {
    if (capturing(stream))
      return engine().LaunchHostFunc(stream.queue(), run_captured,
                                     new CapturedKernel{function, data});
    auto kernel = std::make_unique<Kernel>(Kernel{function, data, {name, device}});
    for (int i = 0; i < buffers; ++i) kernel->use.add(addresses[i], sizes[i]);
    return engine().LaunchHostFunc(stream.queue(), run_kernel, kernel.release());
  });
}

void cuda_double_stop_kernels() { stopped.store(true); }

void* cuda_double_allocate(int device, CUstream stream, size_t bytes) {
  const DeviceScope scope(device);
  return cache_allocate(device, stream, bytes);
}

void cuda_double_free(void* memory) { cache_free(memory); }

void cuda_double_record_stream(int device, void* memory, CUstream stream) {
  const DeviceScope scope(device);
  cache_record_stream(memory, stream);
}

int cuda_double_device_of(const void* address) {
  const RangeRef range = find_range(address);
  return range ? range->device : -1;
}

}  // extern "C"
