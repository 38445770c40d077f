// A CUDA device for a build of torch without CUDA, backed by the double: streams and events, a
// caching allocator, and the hooks through which torch detects CUDA.
#include "torch/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <mutex>
#include <vector>

namespace cuda_double {
namespace {

constexpr int kMostDevices = 16;
constexpr std::size_t kPool = 32;  // the size of torch's stream pool per device and priority

CUcontext context_of(int device) {
  static std::array<std::once_flag, kMostDevices> once;
  static std::array<CUcontext, kMostDevices> contexts{};
  const auto index = static_cast<std::size_t>(device);
  TORCH_CHECK(device >= 0 && index < contexts.size(), "invalid device ordinal ", device);
  std::call_once(once[index], [&] {
    check(cuDevicePrimaryCtxRetain(&contexts[index], device), "cuDevicePrimaryCtxRetain");
  });
  return contexts[index];
}

// The CUDA runtime makes the current device's context current if a call needs one.
void need_context() { set_device(current_device()); }

class Pool {
 public:
  CUstream next(int device, int priority) {
    const std::scoped_lock lock(mutex_);
    auto& streams = streams_[static_cast<std::size_t>(device)][priority < 0];
    auto& next = next_[static_cast<std::size_t>(device)][priority < 0];
    if (streams.size() < kPool) {
      const DeviceScope scope(device);
      CUstream made = nullptr;
      check(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, priority),
            "cuStreamCreateWithPriority");
      streams.push_back(made);
      return made;
    }
    return streams[next++ % kPool];
  }

 private:
  std::mutex mutex_;
  std::array<std::array<std::vector<CUstream>, 2>, kMostDevices> streams_;
  std::array<std::array<std::size_t, 2>, kMostDevices> next_{};
};

Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return at(current_device()); }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      setDevice(device);
    } catch (const std::exception&) {
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    cuDeviceGetCount(&count);
    return static_cast<c10::DeviceIndex>(count);
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device own = at(device);
    return stream_of(own, current_stream(own));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(at(device), nullptr);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::Device own = at(device);
    return stream_of(own, pool().next(own.index(), priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    cuda_double_set_current_stream(stream.device_index(), handle_of(stream));
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const DeviceScope scope(stream.device_index());
    return ready(cuStreamQuery(handle_of(stream)), "cuStreamQuery");
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const DeviceScope scope(stream.device_index());
    check(cuStreamSynchronize(handle_of(stream)), "cuStreamSynchronize");
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    const DeviceScope scope(stream.device_index());
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(cuStreamIsCapturing(handle_of(stream), &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const DeviceScope scope(device);
    check(cuCtxSynchronize(), "cuCtxSynchronize");
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event) cuEventDestroy_v2(static_cast<CUevent>(event));
  }
  // Creates the event when it is first recorded.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "event of device ", device,
                " cannot be recorded on ", stream);
    const DeviceScope scope(stream.device_index());
    auto made = static_cast<CUevent>(*event);
    if (!made) {
      const bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      check(cuEventCreate(&made, timing ? 0 : CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      *event = made;
    }
    check(cuEventRecord(made, handle_of(stream)), "cuEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const DeviceScope scope(stream.device_index());
    check(cuStreamWaitEvent(handle_of(stream), static_cast<CUevent>(event), 0),
          "cuStreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    need_context();
    return ready(cuEventQuery(static_cast<CUevent>(event)), "cuEventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    need_context();
    check(cuEventSynchronize(static_cast<CUevent>(event)), "cuEventSynchronize");
  }
  double elapsedTime(void* began, void* ended, const c10::DeviceIndex device) const override {
    const DeviceScope scope(device);
    float milliseconds = 0;
    check(
        cuEventElapsedTime(&milliseconds, static_cast<CUevent>(began), static_cast<CUevent>(ended)),
        "cuEventElapsedTime");
    return milliseconds;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    cuda_double_record_stream(stream.device_index(), data.get(), handle_of(stream));
  }

 private:
  static c10::Device at(int device) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device)}; }
  static c10::Device at(const c10::Device& device) {
    return device.index() < 0 ? at(current_device()) : device;
  }
  static bool ready(CUresult result, const char* function) {
    if (result == CUDA_ERROR_NOT_READY) return false;
    check(result, function);
    return true;
  }
};

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(current_device()));
    void* data = nullptr;
    if (bytes > 0) {
      data = cuda_double_allocate(device.index(), current_stream(device), bytes);
      TORCH_CHECK(data, "the CUDA double is out of memory");
    }
    return {data, data, &cuda_double_free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &cuda_double_free; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the CUDA double's allocator does not copy");
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  int getNumGPUs() const override { return deviceCount(); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(cuda_double::current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({c10::kCUDA, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(cuda_double_device_of(data))};
  }
};

// DistributedDataParallel requires one, but without events it cannot measure.
struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<std::int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

Memory memory;
[[maybe_unused]] const bool allocates = [] {
  c10::SetAllocator(c10::kCUDA, &memory);
  return true;
}();

}  // namespace

int current_device() {
  CUcontext context = nullptr;
  CUdevice device = 0;
  cuCtxGetCurrent(&context);
  if (context) cuCtxGetDevice(&device);
  return device;
}

void set_device(int device) { check(cuCtxSetCurrent(context_of(device)), "cuCtxSetCurrent"); }

void wait_for_current(const c10::Device& device) {
  Guard().synchronizeStream(stream_of(device, current_stream(device)));
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace cuda_double

namespace {

thread_local std::array<cuda_double::CUstream, cuda_double::kMostDevices> current_streams{};

}  // namespace

void cuda_double_set_current_stream(int device, cuda_double::CUstream stream) {
  current_streams[static_cast<std::size_t>(device)] = stream;
}

cuda_double::CUstream cuda_double_current_stream(int device) {
  return current_streams[static_cast<std::size_t>(device)];
}

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, cuda_double::Timer)
}

namespace at {
using CUDAHooks = cuda_double::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
