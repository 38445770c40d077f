// Memory of ncclMemAlloc. ncclMemFree does not wait for the device; the functions of this file free
// memory when the work that was enqueued before, on any stream of its device, is done.
#pragma once

#include <cstddef>
#include <memory>

#include "nccl/library.h"

namespace pynccl {

// Allocates on the current device. Waits for free_memory_later() where there is not enough memory.
void* allocate_memory(Library& library, std::size_t bytes);

// The same on a device. It is freed after its work.
std::shared_ptr<void> allocate_shared(const std::shared_ptr<Library>& library, int device,
                                      std::size_t bytes);

// Waits for the work on a device, of all ranks that use it. False where a capture is in progress,
// which does not allow it.
bool wait_for_device(const Library& library, int device);

// The same for a call of the user: throws DriverFailure where a handler of a signal ends the wait.
bool wait_for_device_or_signal(const std::shared_ptr<Library>& library, int device);

// Waits in the background, since the work may depend on what the caller does next: a GPU for 50 ms
// here, so that an idle one is done when another library begins a capture. captured: a stream that
// another library captures, which the wait for the device would invalidate; it exists until its
// capture has ended.
void free_memory_later(std::shared_ptr<Library> library, void* data, int device,
                       CUstream captured = nullptr) noexcept;

// Copies from host memory, and returns when the copy is done. The current thread may be capturing.
void copy_to_device(const std::shared_ptr<Library>& library, int device, void* to, const void* from,
                    std::size_t bytes);

}  // namespace pynccl
