// Memory from ncclMemAlloc. ncclMemFree does not wait for the device. The functions of this file
// free memory once the work enqueued before, on any stream of its device, is complete.
#pragma once

#include <cstddef>
#include <memory>

#include "nccl/library.h"

namespace pynccl {

// Allocates on the current device. If memory runs out, waits for pending free_memory_later() calls.
void* allocate_memory(Library& library, std::size_t bytes);

// Allocates on the given device. The deleter is free_memory_later().
std::shared_ptr<void> allocate_shared(const std::shared_ptr<Library>& library, int device,
                                      std::size_t bytes);

// Waits for the work on a device, of all ranks that use it. Returns false if a capture is in
// progress, which does not permit the wait.
bool wait_for_device(const Library& library, int device);

// wait_for_device() for a call of the user. Throws DriverFailure if a signal handler ends the wait.
bool wait_for_device_or_signal(const std::shared_ptr<Library>& library, int device);

// Frees memory in the background, because the device's work may depend on what the caller does
// next. On a GPU the call itself waits up to 50 ms, so that an idle device is finished before
// another library begins a capture. captured: a stream that another library is capturing, which the
// wait for the device would invalidate; it must exist until the end of the capture.
void free_memory_later(std::shared_ptr<Library> library, void* data, int device,
                       CUstream captured = nullptr) noexcept;

// Copies from host memory, synchronously. The current thread may be capturing.
void copy_to_device(const std::shared_ptr<Library>& library, int device, void* to, const void* from,
                    std::size_t bytes);

}  // namespace pynccl
