#include "hostnccl/api/arguments.h"

#include <cstdint>

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
  Ref<Communicator> comm = communicators().find(non_null(handle, "comm"));
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

Ref<Stream> stream_argument(abi::cudaStream_t handle) {
  if (is_calling_thread(handle)) return {};
  Ref<Stream> stream = streams().find(handle);
  if (!stream || !stream->is_of_this_process()) {
    fail(abi::ncclInvalidArgument,
         "stream=%p is not a stream of hostnccl: 0, 1 and 2 are the calling thread, others are "
         "created by hostStreamCreateWithPriority",
         static_cast<void*>(handle));
  }
  return stream;
}

void check_rank(const char* name, int rank, int nranks) {
  if (rank < 0 || rank >= nranks) {
    fail(abi::ncclInvalidArgument, "%s=%d is not in [0, %d)", name, rank, nranks);
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
  if (config != nullptr) {
    const CollConfig options = read_coll_config(config, kind, comm);
    operation.path = options.path;
    operation.tag = options.tag;
    pending.launch_event = options.launch_event;
  }
  return Group::of_this_thread().submit(std::move(pending));
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
