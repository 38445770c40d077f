// NCCL's C API: host calls for kernels that communicate themselves. All ranks are in one LSA team.
// There is no multicast memory, no GIN and no CFT.
#include <algorithm>
#include <cstring>
#include <string>

#include "hostnccl/api/nccl_api.h"
#include "hostnccl/operations/device_communicator.h"

using namespace pynccl::abi;
using namespace hostnccl;

namespace {

constexpr int kPropertiesSince = 22902;

// The bytes of ncclCommProperties_t that every version has.
constexpr size_t kLeastProperties = offsetof(ncclCommProperties_t, nLsaTeams);

std::string version_text(unsigned version) {
  return format("%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

void check_head(const char* name, unsigned magic, unsigned version, unsigned oldest) {
  if (magic != kApiMagic) {
    fail(ncclInvalidUsage, "%s was not initialized by its initializer in nccl_device.h", name);
  }
  if (version < oldest || version > unsigned{kVersion}) {
    fail(ncclInvalidUsage,
         "the program was compiled with NCCL %s, but hostnccl supports %s from NCCL %s to NCCL %s",
         version_text(version).c_str(), name, version_text(oldest).c_str(),
         version_text(kVersion).c_str());
  }
}

ncclResult_t pointer_of_rank(const char* name, ncclWindow_t handle, size_t offset, int rank,
                             void** outPtr) {
  return guarded([=] {
    const Ref<Window> window = any_window(handle, "window");
    non_null(outPtr, "outPtr");
    check_rank(name, rank, window->nranks());
    const size_t bytes = window->part(rank).bytes;
    if (offset >= window->own().bytes || offset >= bytes) {
      fail(ncclInvalidArgument, "offset=%zu is beyond the window, which has %zu bytes", offset,
           std::min(bytes, window->own().bytes));
    }
    *outPtr = window->flat().address(rank) + offset;
  });
}

// Rejects a query of logical endpoints.
ncclResult_t no_le_info(ncclWindow_t handle) {
  return guarded([=] {
    any_window(handle, "window");
    fail(ncclInvalidUsage, "window=%p has no logical endpoints: hostnccl has no CFT",
         static_cast<void*>(handle));
  });
}

// Runs body for a team function. These have no result code: an invalid comm yields none.
template <typename Result, typename Body>
Result of_comm(ncclComm_t comm, Result none, const Body& body) {
  Result result = none;
  guarded([&] { result = body(*ready_comm(comm)); });
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    const size_t size = non_null(props, "props")->size;
    check_head("ncclCommProperties_t", props->magic, props->version, kPropertiesSince);
    if (size < kLeastProperties) {
      fail(ncclInvalidArgument, "props->size=%zu is below %zu", size, kLeastProperties);
    }
    ncclCommProperties_t all;
    all.rank = owner->rank();
    all.nRanks = owner->nranks();
    all.deviceApiSupport = true;
    all.nLsaTeams = 1;
    all.hostRmaSupport = true;
    all.commHash = owner->segment().identity();
    all.ginMinStride = 1;
    all.devCommRuntimeVersionSize = sizeof(ncclDevComm);
    constexpr size_t kHead = offsetof(ncclCommProperties_t, rank);
    std::memcpy(reinterpret_cast<char*>(props) + kHead, reinterpret_cast<char*>(&all) + kHead,
                std::min(size, sizeof all) - kHead);
  });
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm* outDevComm) {
  return group_guarded([&] {
    const Ref<Communicator> owner = usable_comm(comm);
    non_null(reqs, "reqs");
    check_head("ncclDevComm", reqs->magic, reqs->version, kDeviceLayoutSince);
    non_null(outDevComm, "outDevComm");
    return Group::current().submit(
        device_communicator_job(outDevComm, owner, DeviceRequirements(*reqs, owner->nranks())));
  });
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* devComm) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    check_head("devComm", non_null(devComm, "devComm")->magic, devComm->version,
               kDeviceLayoutSince);
    const Ref<Window> resources = find_window(devComm->resourceWindow);
    if (!resources || resources->owner() != comm || !owner->windows().remove(resources)) {
      fail(ncclInvalidArgument, "devComm is not a device communicator of comm, or was destroyed");
    }
  });
}

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam team, int nBarriers,
                                             ncclLsaBarrierHandle* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
  return guarded([=] {
    if (nBarriers < 0) fail(ncclInvalidArgument, "nBarriers=%d is negative", nBarriers);
    non_null(outHandle, "outHandle")->nBarriers = nBarriers;
    *non_null(outReq, "outReq") = {};
    outReq->bufferSize = pynccl::device::barrier_bytes(nBarriers, team.nRanks);
    outReq->bufferAlign = alignof(pynccl::device::BarrierCell);
    outReq->outBufferHandle = &outHandle->bufHandle;
  });
}

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam team, int nBarriers,
                                             ncclGinBarrierHandle* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
  return guarded([=] {
    ready_comm(comm);
    *non_null(outReq, "outReq") = {};
    outReq->ginSignalCount = nBarriers * team.nRanks;
    outReq->outGinSignalStart = &non_null(outHandle, "outHandle")->signal0;
  });
}

int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) { return maxElts * ((maxEltSize + 7) / 8); }

ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle* outHandle,
                                        ncclDevResourceRequirements_t* outReq) {
  return guarded([=] {
    if (nBlocks < 0) fail(ncclInvalidArgument, "nBlocks=%d is negative", nBlocks);
    if (nSlots < 0) fail(ncclInvalidArgument, "nSlots=%d is negative", nSlots);
    non_null(outHandle, "outHandle")->nSlots = static_cast<uint32_t>(nSlots);
    *non_null(outReq, "outReq") = {};
    // Per block, a counter and two alternating sets of slots; 16 bytes each.
    const size_t bytes_of_block = (1 + 2 * static_cast<size_t>(nSlots)) * 16;
    if (__builtin_mul_overflow(static_cast<size_t>(nBlocks), bytes_of_block, &outReq->bufferSize)) {
      fail(ncclInvalidArgument, "nBlocks=%d and nSlots=%d exceed the address space", nBlocks,
           nSlots);
    }
    outReq->bufferAlign = 16;
    outReq->outBufferHandle = &outHandle->bufHandle;
  });
}

ncclTeam ncclTeamWorld(ncclComm_t comm) {
  return of_comm(comm, ncclTeam{}, [](const Communicator& owner) {
    return ncclTeam{owner.nranks(), owner.rank(), 1};
  });
}

ncclTeam ncclTeamLsa(ncclComm_t comm) { return ncclTeamWorld(comm); }

ncclTeam ncclTeamRail(ncclComm_t comm) {
  return of_comm(comm, ncclTeam{},
                 [](const Communicator& owner) { return ncclTeam{1, 0, owner.nranks()}; });
}

ncclTeam ncclTeamCft(ncclComm_t, ncclCftTeamMode_t) { return {}; }
ncclTeam ncclTeamCftMultimem(ncclComm_t) { return {}; }

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam team, int rank) {
  return of_comm(comm, -1, [=](const Communicator& owner) {
    return owner.rank() + (rank - team.rank) * team.stride;
  });
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam team, int rank) {
  return ncclTeamRankToWorld(comm, team, rank);
}

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                     void** outPtr) {
  return pointer_of_rank("lsaRank", window, offset, lsaRank, outPtr);
}

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr) {
  return pointer_of_rank("peer", window, offset, peer, outPtr);
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t, void** outPtr) {
  return guarded([=] {
    any_window(window, "window");
    *non_null(outPtr, "outPtr") = nullptr;
  });
}

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t, ncclMultimemHandle multimem,
                                          void** outPtr) {
  return guarded([=] {
    any_window(window, "window");
    non_null(multimem.mcBasePtr, "multimem.mcBasePtr");
    *non_null(outPtr, "outPtr") = nullptr;
  });
}

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t, ncclCftLeId*, size_t*) {
  return no_le_info(window);
}
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t, int, ncclTeam, ncclCftLeId*,
                                    size_t*) {
  return no_le_info(window);
}
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t, int, ncclCftLeId*, size_t*) {
  return no_le_info(window);
}

}  // extern "C"
