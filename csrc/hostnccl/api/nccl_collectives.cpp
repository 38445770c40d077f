// NCCL's C API: the collectives, each with and without an ncclCollConfig_t, ncclSend and ncclRecv,
// groups and their simulation.
#include <cstddef>
#include <optional>

#include "hostnccl/api/nccl_api.h"

using namespace hostnccl;

namespace {

// The error of an ncclSimInfo_t that was not initialized. Null is allowed.
std::optional<Error> check_sim_info(const ncclSimInfo_t* info) {
  constexpr size_t kSmallest = offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float);
  if (info == nullptr || (info->magic == kSimInfoMagic && info->size >= kSmallest)) return {};
  return Error(ncclInvalidArgument, "simInfo was not initialized with NCCL_SIM_INFO_INITIALIZER");
}

}  // namespace

#define HOSTNCCL_UNPACK(...) __VA_ARGS__

// Defines ncclX and ncclXConfig. parameters: those between datatype and comm. values: the same, in
// the order of the fields of Arguments.
#define COLLECTIVE(kind, parameters, values)                                                       \
  ncclResult_t nccl##kind(const void* sendbuff, void* recvbuff, size_t count,                      \
                          ncclDataType_t datatype, HOSTNCCL_UNPACK parameters ncclComm_t comm,     \
                          cudaStream_t stream) {                                                   \
    const Arguments arguments{sendbuff, recvbuff, count, datatype, HOSTNCCL_UNPACK values};        \
    return group_guarded([&] { return submit_operation(Kind::kind, arguments, comm, stream); });   \
  }                                                                                                \
  ncclResult_t nccl##kind##Config(const void* sendbuff, void* recvbuff, size_t count,              \
                                  ncclDataType_t datatype,                                         \
                                  HOSTNCCL_UNPACK parameters ncclComm_t comm, cudaStream_t stream, \
                                  const ncclCollConfig_t* config) {                                \
    const Arguments arguments{sendbuff, recvbuff, count, datatype, HOSTNCCL_UNPACK values};        \
    return group_guarded(                                                                          \
        [&] { return submit_operation(Kind::kind, arguments, comm, stream, config); });            \
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
  return group_guarded([&] { return submit_operation(Kind::Send, arguments, comm, stream); });
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Arguments arguments{nullptr, recvbuff, count, datatype, ncclSum, peer};
  return group_guarded([&] { return submit_operation(Kind::Recv, arguments, comm, stream); });
}

ncclResult_t ncclGroupStart() {
  return guarded([] { Group::current().start(); });
}

ncclResult_t ncclGroupEnd() {
  return guarded([] { return Group::current().end(); });
}

// The group ends even if simInfo is invalid, as in NCCL.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return guarded([=] {
    const std::optional<Error> info_error = check_sim_info(simInfo);
    Group& group = Group::current();
    if (info_error && group.active()) group.set_error(*info_error);
    const std::optional<double> microseconds = group.end_simulated();
    if (info_error) throw *info_error;
    if (microseconds && simInfo != nullptr) {
      simInfo->estimatedTime = static_cast<float>(*microseconds);
    }
  });
}

}  // extern "C"
