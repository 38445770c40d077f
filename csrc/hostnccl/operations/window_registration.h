// Collective registration of a window.
//
// Each rank publishes its memory. Ranks of different processes exchange the files of that memory
// and map them. Then all ranks exchange whether they succeeded. The window therefore exists on all
// ranks or on none, each rank gets the reason, and the communicator stays usable in both cases.
#pragma once

#include <functional>

#include "hostnccl/communicator/job.h"
#include "hostnccl/segment/window.h"

namespace hostnccl {

// The use of a window: one-sided operations and collectives, or the resources of a device
// communicator. Resources are allocated here and freed with the window.
enum class WindowUse : uint32_t { Plain, Symmetric, Resources };

// Registers a window, within a job. buffer is null for resources. An error of one rank is thrown on
// all ranks.
Ref<Window> register_window(const Job& job, void* buffer, size_t bytes, WindowUse use);

// A job that registers windows of comm.
Job registration_job(const Ref<Communicator>& comm, std::function<void(const Job&)> run);

}  // namespace hostnccl
