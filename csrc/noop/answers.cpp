// The functions of the no-op library whose results callers depend on. A communicator is not an
// object: its handle encodes the number of ranks and the rank.
#include <cstdint>
#include <cstdlib>

#include "noop/exports.h"

namespace pynccl::abi {
namespace {

constexpr int kRankBits = 24;

ncclComm_t make_comm(int nranks, int rank) {
  const auto ranks = static_cast<std::uintptr_t>(nranks) << kRankBits;
  return reinterpret_cast<ncclComm_t>(ranks | static_cast<std::uintptr_t>(rank));
}

int ranks_of(ncclComm_t comm) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(comm) >> kRankBits);
}

int rank_of(ncclComm_t comm) {
  constexpr std::uintptr_t mask = (std::uintptr_t{1} << kRankBits) - 1;
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(comm) & mask);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = kVersion;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId, int rank) {
  *comm = make_comm(nranks, rank);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId, int rank,
                                    ncclConfig_t*) {
  *comm = make_comm(nranks, rank);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int,
                                      ncclUniqueId*, ncclConfig_t*) {
  *newcomm = make_comm(nranks, myrank);
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int*) {
  for (int i = 0; i < ndev; ++i) comm[i] = make_comm(ndev, i);
  return ncclSuccess;
}

// The colors of the other ranks are unknown, so the new communicator has the size and rank of the
// parent.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* newcomm, ncclConfig_t*) {
  *newcomm = color == kSplitNoColor ? nullptr : comm;
  return ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t*, int) {
  if (excludeRanksList == nullptr && excludeRanksCount > 0) return ncclInvalidArgument;
  int rank = rank_of(comm);
  for (int i = 0; i < excludeRanksCount; ++i) rank -= excludeRanksList[i] < rank_of(comm);
  *newcomm = make_comm(ranks_of(comm) - excludeRanksCount, rank);
  return ncclSuccess;
}

// A rank of the old communicator passes -1 and keeps its rank.
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId*, int rank,
                          ncclComm_t* newcomm, ncclConfig_t*) {
  *newcomm = make_comm(nRanks, rank < 0 ? rank_of(comm) : rank);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = ranks_of(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = rank_of(comm);
  return ncclSuccess;
}

// Operations take no time.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  if (simInfo) simInfo->estimatedTime = 0;
  return ncclSuccess;
}

// Real memory, because callers write into it.
ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  *ptr = std::malloc(size == 0 ? 1 : size);
  return *ptr == nullptr ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclMemFree(void* ptr) {
  std::free(ptr);
  return ncclSuccess;
}

// A driver that supports all features that pynccl checks for.
CUresult hostDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult hostDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult hostDeviceGetName(char* name, int len, CUdevice) {
  if (len > 0) name[0] = '\0';
  return CUDA_SUCCESS;
}

CUresult hostPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr) {
  unsigned value = 0;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) value = CU_MEMORYTYPE_HOST;
  *static_cast<unsigned*>(data) = value;
  return CUDA_SUCCESS;
}

// Calls the function immediately: all earlier work is done, and the function may free memory.
CUresult hostLaunchHostFunc(CUstream, CUhostFn function, void* userData) {
  function(userData);
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace pynccl::abi
