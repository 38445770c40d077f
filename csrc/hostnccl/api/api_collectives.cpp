// NCCL's C API: the collectives, each with and without a configuration of its own, and the
// messages.
#include "hostnccl/api/api.h"
#include "hostnccl/api/arguments.h"

using namespace hostnccl;

#define HOSTNCCL_EACH(...) __VA_ARGS__

// A collective and its twin: parameters are those between datatype and comm, values the same as
// Arguments takes them.
#define COLLECTIVE(kind, parameters, values)                                                     \
  ncclResult_t nccl##kind(const void* sendbuff, void* recvbuff, size_t count,                    \
                          ncclDataType_t datatype, HOSTNCCL_EACH parameters ncclComm_t comm,     \
                          cudaStream_t stream) {                                                 \
    const Arguments arguments{sendbuff, recvbuff, count, datatype, HOSTNCCL_EACH values};        \
    return checked([&] { return call(Kind::kind, arguments, comm, stream); });                   \
  }                                                                                              \
  ncclResult_t nccl##kind##Config(const void* sendbuff, void* recvbuff, size_t count,            \
                                  ncclDataType_t datatype,                                       \
                                  HOSTNCCL_EACH parameters ncclComm_t comm, cudaStream_t stream, \
                                  const ncclCollConfig_t* config) {                              \
    const Arguments arguments{sendbuff, recvbuff, count, datatype, HOSTNCCL_EACH values};        \
    return checked([&] { return call(Kind::kind, arguments, comm, stream, config); });           \
  }

extern "C" {

COLLECTIVE(AllReduce, (ncclRedOp_t op, ), (op))
COLLECTIVE(Reduce, (ncclRedOp_t op, int root, ), (op, root))
COLLECTIVE(Broadcast, (int root, ), (ncclSum, root))
COLLECTIVE(ReduceScatter, (ncclRedOp_t op, ), (op))
COLLECTIVE(AllGather, (), ())
COLLECTIVE(AlltoAll, (), ())
COLLECTIVE(Gather, (int root, ), (ncclSum, root))
COLLECTIVE(Scatter, (int root, ), (ncclSum, root))

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Arguments arguments{sendbuff, nullptr, count, datatype, ncclSum, peer};
  return checked([&] { return call(Kind::Send, arguments, comm, stream); });
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Arguments arguments{nullptr, recvbuff, count, datatype, ncclSum, peer};
  return checked([&] { return call(Kind::Recv, arguments, comm, stream); });
}

}  // extern "C"
