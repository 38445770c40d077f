// The arguments of NCCL's calls: from what the caller gave to what the engine works with, or an
// error that names the argument and its value.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/group/coll_config.h"
#include "hostnccl/group/group.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

template <typename T>
T* non_null(T* pointer, const char* name) {
  if (pointer == nullptr) fail(abi::ncclInvalidArgument, "%s is null", name);
  return pointer;
}

Ref<Communicator> open_comm(abi::ncclComm_t comm);    // in whatever state
Ref<Communicator> ready_comm(abi::ncclComm_t comm);   // initialised
Ref<Communicator> usable_comm(abi::ncclComm_t comm);  // without an error, not finalized

Ref<Stream> stream_argument(abi::cudaStream_t stream);  // none: the calling thread

void check_size_and_rank(int nranks, int rank);
void check_rank(const char* name, int rank, int nranks);
void check_dtype(abi::ncclDataType_t datatype);

// What a collective or a message is called with; peer stands for root too.
struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count;
  abi::ncclDataType_t datatype;
  abi::ncclRedOp_t op = abi::ncclSum;
  int peer = 0;
};

// Checks everything, then starts the operation or adds it to the group.
abi::ncclResult_t call(Kind kind, const Arguments& arguments, abi::ncclComm_t comm,
                       abi::cudaStream_t stream, const abi::ncclCollConfig_t* config = nullptr);

}  // namespace hostnccl
