#include "hostnccl/api/nccl_api.h"

#include <strings.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace hostnccl {
namespace {

void set_reduction(Operation& operation, Communicator& comm, abi::ncclRedOp_t op) {
  switch (op) {
    case abi::ncclSum:
      operation.reduce = ReduceKind::Sum;
      return;
    case abi::ncclProd:
      operation.reduce = ReduceKind::Prod;
      return;
    case abi::ncclMax:
      operation.reduce = ReduceKind::Max;
      return;
    case abi::ncclMin:
      operation.reduce = ReduceKind::Min;
      return;
    case abi::ncclAvg:
      operation.reduce = ReduceKind::Avg;
      return;
    default:
      operation.reduce = ReduceKind::Sum;
      operation.multiplier = comm.red_ops().find(op, operation.dtype);
  }
}

void check_size(const Operation& operation, int blocks) {
  const size_t max_count = static_cast<size_t>(PTRDIFF_MAX) / element_size(operation.dtype) /
                           static_cast<size_t>(blocks);
  if (operation.count > max_count) {
    fail(abi::ncclInvalidArgument, "count=%zu x %s for %d ranks exceeds the address space",
         operation.count, dtype_name(operation.dtype), blocks);
  }
}

void check_buffers(const Operation& operation, int rank) {
  if (operation.count == 0) return;
  const bool is_root = rank == operation.root_or_peer;
  bool sends = operation.kind == Kind::Send;
  bool receives = operation.kind == Kind::Recv;
  if (is_collective(operation.kind)) {
    const CollectiveTraits& traits = traits_of(operation.kind);
    sends = !traits.only_root_sends || is_root;
    receives = !traits.only_root_receives || is_root;
  }
  if (sends) non_null(operation.send, "sendbuff");
  if (receives) non_null(operation.recv, "recvbuff");
  if (operation.kind == Kind::AlltoAll && operation.send == operation.recv) {
    fail(abi::ncclInvalidArgument,
         "sendbuff and recvbuff are the same: ncclAlltoAll does not work in place");
  }
}

}  // namespace

Ref<Communicator> open_comm(abi::ncclComm_t handle) {
  Ref<Communicator> comm = handles<Communicator>().find(non_null(handle, "comm"));
  if (!comm) {
    fail(abi::ncclInvalidArgument, "comm=%p is not a communicator, or was destroyed",
         static_cast<void*>(handle));
  }
  return comm;
}

Ref<Communicator> ready_comm(abi::ncclComm_t handle) {
  Ref<Communicator> comm = open_comm(handle);
  comm->state().check_initialized();
  return comm;
}

Ref<Communicator> usable_comm(abi::ncclComm_t handle) {
  Ref<Communicator> comm = open_comm(handle);
  comm->check_usable();
  return comm;
}

Ref<Window> any_window(abi::ncclWindow_t handle, const char* name) {
  Ref<Window> window = find_window(non_null(handle, name));
  if (!window) {
    fail(abi::ncclInvalidArgument, "%s=%p is not a window, or was deregistered", name,
         static_cast<void*>(handle));
  }
  return window;
}

Ref<Window> window_of(abi::ncclComm_t comm, abi::ncclWindow_t handle, const char* name) {
  Ref<Window> window = any_window(handle, name);
  if (window->owner() != comm) {
    fail(abi::ncclInvalidArgument, "%s=%p is a window of another communicator", name,
         static_cast<void*>(handle));
  }
  return window;
}

Ref<Stream> stream_argument(abi::cudaStream_t handle) {
  if (is_calling_thread(handle)) return {};
  Ref<Stream> stream = handles<Stream>().find(handle);
  if (!stream || !stream->is_of_this_process()) {
    fail(abi::ncclInvalidArgument,
         "stream=%p is not a stream of hostnccl: 0, 1 and 2 are the calling thread, and "
         "hostStreamCreateWithPriority creates others",
         static_cast<void*>(handle));
  }
  return stream;
}

void check_rank(const char* name, int rank, int end) {
  if (rank < 0 || rank >= end) {
    fail(abi::ncclInvalidArgument, "%s=%d is not in [0, %d)", name, rank, end);
  }
}

void check_size_and_rank(int nranks, int rank) {
  if (nranks < 1 || nranks > kMaxRanks) {
    fail(abi::ncclInvalidArgument, "nranks=%d is not in [1, %d]", nranks, kMaxRanks);
  }
  check_rank("rank", rank, nranks);
}

void check_dtype(abi::ncclDataType_t datatype) {
  if (datatype >= abi::ncclNumTypes) {
    fail(abi::ncclInvalidArgument, "datatype=%u is not one of NCCL's %u datatypes",
         static_cast<unsigned>(datatype), static_cast<unsigned>(abi::ncclNumTypes));
  }
}

namespace {

// The path that config->algSelection names. Any if it names none.
Path select_path(const abi::ncclCollConfig_t& config, Kind kind, const Communicator& comm) {
  const char* const name = config.algSelection;
  if (name == nullptr || *name == '\0') return Path::Any;
  if (strcasecmp(name, "staged") == 0) return Path::Staged;
  const bool can_read = comm.nranks() == 1 || comm.segment().supports_direct();
  if (strcasecmp(name, "direct") == 0 && can_read) return Path::Direct;
  if (config.forceAlgSelection == 1) {
    fail(abi::ncclInvalidArgument,
         "config->algSelection=\"%s\" is not available for %s: hostnccl has \"staged\" and, if the "
         "ranks can read each other's memory, \"direct\"; forceAlgSelection=0 allows a fallback",
         name, traits_of(kind).name);
  }
  return Path::Any;
}

Ref<Event> find_event(abi::cudaEvent_t handle) {
  if (handle == nullptr) return {};
  Ref<Event> event = handles<Event>().find(handle);
  if (!event || !event->is_of_this_process()) {
    fail(abi::ncclInvalidArgument,
         "config->launchCompletionEvent=%p is not an event of hostnccl (hostEventCreate)",
         static_cast<void*>(handle));
  }
  if (event->timing()) {
    fail(abi::ncclInvalidArgument,
         "config->launchCompletionEvent=%p was created with timing: NCCL requires "
         "CU_EVENT_DISABLE_TIMING",
         static_cast<void*>(handle));
  }
  return event;
}

// Checks the per-call configuration of a collective and sets the path, the tag and the launch event
// of the operation. The config may come from an older or newer NCCL: its size determines the
// version. Options for GPU kernels (CTAs, clusters, CTA policy) are checked as in NCCL and have no
// effect, because a rank is one thread.
void apply_coll_config(const abi::ncclCollConfig_t& given, PendingOperation& pending) {
  // The first version of the struct, in NCCL 2.31, ended before this field.
  constexpr size_t kSmallest = offsetof(abi::ncclCollConfig_t, launchCompletionEvent);
  constexpr size_t kLargest = size_t{1} << 16;  // a larger size is uninitialized memory
  if (given.size < kSmallest || given.size > kLargest) {
    fail(abi::ncclInvalidArgument, "config->size=%zu is not the size of an ncclCollConfig_t",
         given.size);
  }
  if (given.magic != abi::kApiMagic) {
    fail(abi::ncclInvalidArgument,
         "config->magic=%#x: it was not initialized with NCCL_COLLCONFIG_INITIALIZER", given.magic);
  }
  abi::ncclCollConfig_t config;  // fields missing in an older struct keep their defaults
  std::memcpy(static_cast<void*>(&config), &given, std::min(given.size, sizeof config));
  if (config.forceAlgSelection != 0 && config.forceAlgSelection != 1) {
    fail(abi::ncclInvalidArgument, "config->forceAlgSelection=%d is neither 0 nor 1",
         config.forceAlgSelection);
  }
  constexpr int kPolicies = 0x03;  // all NCCL_CTA_POLICY_* flags
  if (config.CTAPolicy != abi::kUndefInt && (config.CTAPolicy & ~kPolicies) != 0) {
    fail(abi::ncclInvalidArgument,
         "config->CTAPolicy=%d is not a combination of NCCL_CTA_POLICY_* flags", config.CTAPolicy);
  }
  pending.operation.path = select_path(config, pending.operation.kind, *pending.comm);
  pending.operation.tag = config.userProfilerTag;
  pending.launch_event = find_event(config.launchCompletionEvent);
}

abi::ncclResult_t submit_checked(PendingOperation&& pending, const Arguments& arguments,
                                 abi::cudaStream_t stream_handle,
                                 const abi::ncclCollConfig_t* config) {
  Communicator& comm = *pending.comm;
  comm.check_usable();
  const Kind kind = pending.operation.kind;
  Operation& operation = pending.operation;
  check_dtype(arguments.datatype);
  operation.send = arguments.send;
  operation.recv = arguments.recv;
  operation.count = arguments.count;
  operation.root_or_peer = arguments.root_or_peer;
  const CollectiveTraits& traits = traits_of(kind);
  if (traits.reduces) set_reduction(operation, comm, arguments.op);
  check_rank(is_collective(kind) ? "root" : "peer", operation.root_or_peer, comm.nranks());
  check_size(operation, comm.nranks());
  check_buffers(operation, comm.rank());
  if (!is_calling_thread(stream_handle)) pending.stream = stream_argument(stream_handle);
  if (config != nullptr) apply_coll_config(*config, pending);
  return Group::current().submit(std::move(pending));
}

}  // namespace

abi::ncclResult_t submit_operation(Kind kind, const Arguments& arguments, abi::ncclComm_t handle,
                                   abi::cudaStream_t stream_handle,
                                   const abi::ncclCollConfig_t* config) {
  PendingOperation pending{open_comm(handle), {kind, arguments.datatype}, {}, {}, {}};
  if (!pending.comm->strict_calls()) [[likely]]
    return submit_checked(std::move(pending), arguments, stream_handle, config);
  return noting_refusal(Ref<Communicator>(pending.comm), [&] {
    return submit_checked(std::move(pending), arguments, stream_handle, config);
  });
}

}  // namespace hostnccl
