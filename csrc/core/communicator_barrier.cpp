// The memory that barriers of a communicator reduce.
#include "core/communicator.h"
#include "core/device.h"
#include "core/device_memory.h"

namespace pynccl {

void* Communicator::barrier_memory() {
  const int on_device = device();
  const std::lock_guard lock(mutex_);
  if (!barrier_memory_) {
    const RelaxedMode relaxed(*library_);  // a stream may be captured
    const DeviceScope scope(*library_, on_device);
    const auto release = [library = library_, on_device](void* memory) {
      free_memory_later(library, memory, on_device);
    };
    barrier_memory_ = {allocate_memory(*library_, 1), release};
  }
  return barrier_memory_.get();
}

}  // namespace pynccl
