// Declarations of NCCL's C API, for the files that define it (nccl_*.cpp), and their guard. The
// declarations are generated from the list of entry points, so a wrong signature does not compile.
// The linker adds the profiling names, pnccl*: profiling_names.ld.in.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/group/group.h"
#include "hostnccl/segment/window.h"
#include "hostnccl/streams/stream.h"

using namespace pynccl::abi;  // nccl.h declares its names in the global namespace

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) \
  extern "C" [[gnu::visibility("default")]] result name(__VA_ARGS__);
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

namespace hostnccl {

// guarded(), for functions that take part in a group. An error in an open group is also the error
// of the group: ncclGroupEnd returns it and starts nothing.
template <typename Body>
abi::ncclResult_t group_guarded(Body&& body) noexcept {
  return guarded([&body] {
    try {
      return body();
    } catch (...) {
      Group& group = Group::current();
      if (group.active()) group.set_error(current_error());
      throw;
    }
  });
}

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

// Argument checks. Each converts an argument to an object of the engine, or throws
// ncclInvalidArgument with the name and the value of the argument.

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
