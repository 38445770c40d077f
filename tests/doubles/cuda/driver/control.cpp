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

std::atomic<bool> stopped{false};

// Like a framework's guard: in a thread without a context, that of the device stays current.
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

int cuda_double_hold(int device, CUstream handle, const int* released) {
  const DeviceScope scope(device);
  return on_stream(handle, [&](Stream& stream) { return hold(stream, released); });
}

int cuda_double_launch(int device, CUstream handle, const char* name, CUhostFn function, void* data,
                       int buffers, void* const* addresses, const size_t* sizes) {
  const DeviceScope scope(device);
  return on_stream(handle, [&](Stream& stream) {
    const auto use = std::make_shared<MemoryUse>(name, device);
    if (!capturing(stream))  // the owner of a graph manages its memory
      for (int i = 0; i < buffers; ++i) use->add(addresses[i], sizes[i]);
    return launch(stream, [=] {
      take_time();
      if (!stopped.load()) function(data);
      use->end();
    });
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
