#include "comm/device_memory.h"

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/graph.h"
#include "comm/stream.h"
#include "common/per_process.h"
#include "nccl/device.h"
#include "nccl/interrupt.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

struct Freed {
  std::shared_ptr<Library> library;
  void* data;
  int device;
  CUstream captured;
};

// The memory to free, and whether a thread is freeing it.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Freed> memory;
  bool has_thread = false;
};

void free_after_work(const std::vector<Freed>& memory) {
  const Freed* last = nullptr;
  for (const Freed& one : memory) {
    const bool same = last && last->library == one.library && last->device == one.device;
    last = &one;
    try {
      const DeviceScope scope(*one.library, one.device);
      while (one.captured && is_capturing(*one.library, one.captured))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      while (!same && !wait_for_device(*one.library, one.device))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      NCCL_CALL_NOTHROW(*one.library, ncclMemFree, (one.data));
    } catch (...) {  // the device is gone, and its memory with it
    }
  }
}

void free_pending() {
  Pending& all = common::per_process<Pending>();
  std::unique_lock lock(all.mutex);
  while (!all.memory.empty()) {
    const std::vector<Freed> memory = std::exchange(all.memory, {});
    lock.unlock();
    free_after_work(memory);
    lock.lock();
  }
  all.has_thread = false;
  all.changed.notify_all();
}

constexpr std::chrono::seconds kAllocationWait(10);
constexpr std::chrono::milliseconds kFreeWait(50);

void wait_for_pending(std::chrono::milliseconds limit) {
  Pending& all = common::per_process<Pending>();
  std::unique_lock lock(all.mutex);
  all.changed.wait_for(lock, limit, [&] { return !all.has_thread; });
}

}  // namespace

void* allocate_memory(Library& library, std::size_t bytes) {
  const auto allocate = library.nccl<&NcclTable::ncclMemAlloc>();
  void* data = nullptr;
  if (succeeded(allocate(&data, bytes))) return data;
  wait_for_pending(kAllocationWait);
  NCCL_CHECK(library, nullptr, -1, ncclMemAlloc, (&data, bytes));
  return data;
}

std::shared_ptr<void> allocate_shared(const std::shared_ptr<Library>& library, int device,
                                      std::size_t bytes) {
  const RelaxedMode relaxed(*library);  // a stream may be captured
  const DeviceScope scope(*library, device);
  const auto release = [library, device](void* memory) {
    free_memory_later(library, memory, device);
  };
  return {allocate_memory(*library, bytes), release};
}

bool wait_for_device(const Library& library, int device) {
  const Graph::DeviceWait wait;
  if (!wait.allowed()) return false;
  const DeviceScope scope(library, device);
  const RelaxedMode relaxed(library);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // The default stream reports captures of blocking streams by any library.
  if (library.driver().StreamIsCapturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return false;
  const CUresult result = library.driver().CtxSynchronize();
  return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // other errors mean a failed device
}

bool wait_for_device_or_signal(const std::shared_ptr<Library>& library, int device) {
  if (!Interrupt::on_main_thread()) return wait_for_device(*library, device);
  const auto allowed = std::make_shared<bool>();
  const bool returned = run_within(std::numeric_limits<double>::infinity(),
                                   [=] { *allowed = wait_for_device(*library, device); });
  if (!returned) throw_interrupted("cuCtxSynchronize");
  return *allowed;
}

void free_memory_later(std::shared_ptr<Library> library, void* data, int device,
                       CUstream captured) noexcept {
  const bool on_gpu = library->memory() == Memory::kDevice;
  Pending& all = common::per_process<Pending>();
  {
    const std::lock_guard lock(all.mutex);
    try {
      all.memory.push_back({std::move(library), data, device, captured});
      if (std::exchange(all.has_thread, true)) return;
      std::thread(&free_pending).detach();
    } catch (...) {  // no thread could be created: a later call tries again
      all.has_thread = false;
      return;
    }
  }
  // torch.cuda.graph() collects garbage before it begins a capture, which a later wait for the
  // device would invalidate. The device is idle at that point, so this wait is short.
  if (on_gpu && !captured && !Graph::any_capture()) wait_for_pending(kFreeWait);
}

void copy_to_device(const std::shared_ptr<Library>& library, int device, void* to, const void* from,
                    std::size_t bytes) {
  const RelaxedMode relaxed(*library);
  const DeviceScope scope(*library, device);
  const Stream stream(library, device, 0);
  DRIVER_CHECK(*library, MemcpyAsync,
               (reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                stream.handle()));
  stream.synchronize();
}

}  // namespace pynccl
