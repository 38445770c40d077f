// Collective registration of a window.
//
// Each rank publishes its memory. Ranks of different processes exchange the files of that memory
// and map them. Then all ranks exchange whether they succeeded. The window therefore exists on all
// ranks or on none, each rank knows the reason, and the communicator stays usable in both cases.
#pragma once

#include <functional>

#include "hostnccl/communicator/job.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

// The use of a window: one-sided operations and collectives, or the memory of a device
// communicator, which is allocated here and lives as long as the window.
enum class WindowUse : uint32_t { Plain, Symmetric, Resources };

// Within a job. buffer is null for resources. Throws on all ranks what is wrong on one.
Ref<Window> register_window(const Job& job, void* buffer, size_t bytes, WindowUse use);

// A job that registers windows of comm.
Job registration_job(const Ref<Communicator>& comm, std::function<void(const Job&)> run);

}  // namespace hostnccl
