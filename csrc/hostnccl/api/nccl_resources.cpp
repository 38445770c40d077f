// NCCL's C API: memory, buffer registrations and user-defined reductions.
#include "hostnccl/api/arguments.h"
#include "hostnccl/api/nccl_api.h"
#include "hostnccl/segment/memory.h"

using namespace hostnccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  return guarded([=] { *non_null(ptr, "ptr") = allocate_memory(size); });
}

ncclResult_t ncclMemFree(void* ptr) {
  return guarded([=] {
    if (ptr != nullptr) free_memory(ptr);
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([=] {
    // As in NCCL, in any state: a communicator in progress, finalized, revoked or suspended.
    const Ref<Communicator> owner = open_comm(comm);
    non_null(buff, "buff");
    *non_null(handle, "handle") = owner->registrations().add(buff, size);
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return guarded([=] {
    const Ref<Communicator> owner = open_comm(comm);
    if (handle != nullptr && !owner->registrations().remove(handle)) {
      fail(ncclInvalidUsage, "handle=%p is not a registration of comm (ncclCommRegister)", handle);
    }
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([=] {
    non_null(op, "op");
    const Ref<Communicator> owner = ready_comm(comm);
    non_null(scalar, "scalar");
    check_dtype(datatype);
    Multiplier multiplier;
    if (residence == ncclScalarDevice) {
      multiplier.from = Multiplier::From::Address;
      multiplier.address = scalar;
    } else if (residence == ncclScalarHostImmediate) {
      multiplier.from = Multiplier::From::Value;
      multiplier.value = load_scalar(scalar, datatype);
    } else {
      fail(ncclInvalidArgument, "residence=%u is not one of ncclScalarResidence_t",
           static_cast<unsigned>(residence));
    }
    *op = owner->red_ops().add(multiplier, datatype);
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([=] { ready_comm(comm)->red_ops().remove(op); });
}

}  // extern "C"
