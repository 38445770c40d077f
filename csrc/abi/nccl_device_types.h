// The types of nccl_device/*.h that host code passes, in the layout of NCCL 2.31 and 2.32.
// tests/abi checks each of them against the real headers.
//
// This header is also installed: <pynccl/device.h> uses it to declare for CPUs what nccl_device.h
// declares for GPUs.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace pynccl::abi {

inline constexpr int kDeviceVersion = 23203;          // the version of these layouts
inline constexpr int kDeviceLayoutSince = 23100;      // the first version with the same layouts
inline constexpr unsigned kDeviceMagic = 0xcafebeef;  // NCCL_API_MAGIC
inline constexpr std::size_t kResourceUnit = 128;     // bytes; an ncclDevResourceHandle counts them
inline constexpr int kGinConnections = 4;             // NCCL_GIN_MAX_CONNECTIONS

using ncclDevResourceHandle = uint32_t;
using ncclGinSignal_t = uint32_t;
using ncclGinCounter_t = uint32_t;
using ncclCftLeId = uint32_t;
using ncclGinWindow_t = void*;

enum ncclGinConnectionType_t : unsigned {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3,
};

enum ncclGinType_t : unsigned {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6,
};

enum ncclCftTeamMode_t : unsigned {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2,
};

// Ranks of a communicator at a constant stride.
struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
};
using ncclTeam_t = ncclTeam;

struct ncclMultimemHandle {
  void* mcBasePtr;
};

struct ncclLsaBarrierHandle {
  ncclDevResourceHandle bufHandle;
  int nBarriers;
};

struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle unused;
};

struct ncclCftBarrierHandle {
  ncclDevResourceHandle bufHandle;
  int nBarriers;
};

struct ncclLLA2AHandle {
  ncclDevResourceHandle bufHandle;
  uint32_t nSlots;
};

struct ncclSegmentWindow;
struct ncclDevCommWindowTable;

// The target of an ncclWindow_t, in memory that kernels read.
struct ncclWindow_vidmem {
  void* winHost;
  char* lsaFlatBase;  // the memory of LSA rank 0; that of rank r is r * stride4G * 4 GiB further
  int lsaRank;
  int worldRank;
  uint32_t stride4G;
  uint32_t mcOffset4K;
  uint32_t ginOffset4K;
  uint32_t winFlags;
  ncclGinWindow_t ginWinsDefaultBackend[kGinConnections];
  ncclSegmentWindow* ginMultiSegmentWins;
  int numSegments;
  int cftFlatRank;
  ncclCftLeId ucLeIdBase;
};

struct ncclResourceWindow_vidmem {
  char* lsaFlatBase;
  uint32_t stride4G;
  uint32_t mcOffset4K;
};

// A device communicator, which kernels take by value.
struct ncclDevComm {
  unsigned magic;
  unsigned version;
  int rank;
  int nRanks;
  uint32_t nRanks_rcp32;
  int lsaRank;
  int lsaSize;
  uint32_t lsaSize_rcp32;
  ncclDevCommWindowTable* windowTable;
  ncclWindow_vidmem* resourceWindow;
  ncclResourceWindow_vidmem resourceWindow_inlined;
  ncclGinBarrierHandle hybridDenseGinBarrier;
  ncclMultimemHandle lsaMultimem;
  ncclLsaBarrierHandle lsaBarrier;
  ncclGinBarrierHandle railGinBarrier;
  uint8_t ginConnectionCount;
  uint8_t backendIndex;
  uint8_t ginNetDeviceTypes[kGinConnections];
  void* ginHandles[kGinConnections];
  int ginSignalCount;
  int ginCounterCount;
  uint64_t* ginSignalShadows;
  uint32_t ginContextCount;
  int ginConnectionStride;
  int ginContextStride;
  bool ginStrongLegacySignals;
  uint32_t* abortFlag;
  ncclLsaBarrierHandle hybridLsaBarrier;
  ncclGinBarrierHandle hybridRailGinBarrier;
  ncclGinBarrierHandle worldGinBarrier;
  uint32_t ginConnectionStride_rcp32;
  int cftRank;
  int cftSize;
  int cftMultimemRank;
  int cftMultimemSize;
  uint32_t cftMultimemSize_rcp32;
  ncclCftLeId ucLeId;
  ncclCftLeId mcLeId;
  ncclCftBarrierHandle cftBarrier;
  ncclCftBarrierHandle cftMultimemBarrier;
};
using ncclDevComm_t = ncclDevComm;

// Memory and signals that a device communicator requires; a linked list.
struct ncclDevResourceRequirements_t {
  ncclDevResourceRequirements_t* next = nullptr;
  size_t bufferSize = 0;
  size_t bufferAlign = 0;
  ncclDevResourceHandle* outBufferHandle = nullptr;
  int ginSignalCount = 0;
  int ginCounterCount = 0;
  ncclGinSignal_t* outGinSignalStart = nullptr;
  ncclGinCounter_t* outGinCounterStart = nullptr;
};

struct ncclTeamRequirements_t {
  ncclTeamRequirements_t* next = nullptr;
  ncclTeam team{};
  bool multimem = false;
  ncclMultimemHandle* outMultimemHandle = nullptr;
};

// From 2.29 on, NCCL only appends fields to the next two structs, as to ncclConfig_t.
// device_requirements_fields.inc and comm_properties_fields.inc list the first version of each.
struct ncclDevCommRequirements_t {
  size_t size = sizeof(ncclDevCommRequirements_t);
  unsigned magic = kDeviceMagic;
  unsigned version = kDeviceVersion;
#define FIELD(since, type, name, argument, value) type name = value;
#include "device_requirements_fields.inc"
#undef FIELD
};

using NcclGinSupport = bool[64];  // by ncclGinType_t

struct ncclCommProperties_t {
  size_t size = sizeof(ncclCommProperties_t);
  unsigned magic = kDeviceMagic;
  unsigned version = kDeviceVersion;
#define FIELD(since, type, name, value) type name = value;
#include "comm_properties_fields.inc"
#undef FIELD
};

}  // namespace pynccl::abi
