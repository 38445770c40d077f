// Argument checks of NCCL's C API. Each converts an argument to an object of the engine, or throws
// ncclInvalidArgument with the name and the value of the argument.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/group/group.h"
#include "hostnccl/segment/window.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

// Calls body. In strict mode, an error becomes the permanent error of a non-blocking communicator.
template <typename Body>
abi::ncclResult_t noting_refusal(const Ref<Communicator>& comm, Body&& body) {
  try {
    return body();
  } catch (...) {
    if (comm->strict_calls()) comm->state().refuse(current_error());
    throw;
  }
}

template <typename T>
T* non_null(T* pointer, const char* name) {
  if (pointer == nullptr) fail(abi::ncclInvalidArgument, "%s is null", name);
  return pointer;
}

Ref<Communicator> open_comm(abi::ncclComm_t comm);    // in any state
Ref<Communicator> ready_comm(abi::ncclComm_t comm);   // initialized
Ref<Communicator> usable_comm(abi::ncclComm_t comm);  // ready for an operation

Ref<Window> any_window(abi::ncclWindow_t handle, const char* name);  // of any communicator
Ref<Window> window_of(abi::ncclComm_t comm, abi::ncclWindow_t handle, const char* name);

Ref<Stream> stream_argument(abi::cudaStream_t stream);  // null: the calling thread

void check_size_and_rank(int nranks, int rank);
void check_rank(const char* name, int rank, int end);  // also another index
void check_dtype(abi::ncclDataType_t datatype);

// The arguments of a collective, send or receive.
struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count;
  abi::ncclDataType_t datatype;
  abi::ncclRedOp_t op = abi::ncclSum;
  int root_or_peer = 0;
};

// Checks all arguments, then submits the operation to the group of this thread.
abi::ncclResult_t submit_operation(Kind kind, const Arguments& arguments, abi::ncclComm_t comm,
                                   abi::cudaStream_t stream,
                                   const abi::ncclCollConfig_t* config = nullptr);

}  // namespace hostnccl
