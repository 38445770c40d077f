// The types of NCCL's C ABI, version 2.32: the names, values and layouts of nccl.h, declared here
// so that the build needs no NCCL. tests/abi checks each of them against a real nccl.h.
//
// The namespace pynccl::abi lets a translation unit also include the real nccl.h.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "nccl_device_types.h"  // beside this file, in the sources and when installed

namespace pynccl::abi {

inline constexpr int kVersion = 23203;  // the version of nccl.h that this file declares
inline constexpr int kOldestVersion = 21800;

inline constexpr int kUniqueIdBytes = 128;
inline constexpr int kUndefInt = INT_MIN;
inline constexpr float kUndefFloat = -1.0f;
inline constexpr int kSplitNoColor = -1;
inline constexpr unsigned kApiMagic = 0xcafebeef;
inline constexpr unsigned kSimInfoMagic = 0x74685283;

struct ncclComm;
struct ncclParamHandle;
struct CUstream_st;
struct CUevent_st;

using ncclComm_t = ncclComm*;
using ncclWindow_t = ncclWindow_vidmem*;
using ncclParamHandle_t = ncclParamHandle*;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

struct ncclUniqueId {
  char internal[kUniqueIdBytes];
};

enum ncclResult_t : unsigned {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
  ncclNumResults = 9,
};

enum ncclRedOp_t : unsigned {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff,
};

enum ncclDataType_t : unsigned {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12,
};

enum ncclScalarResidence_t : unsigned { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

enum ncclCommMemStat_t : unsigned {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3,
};

enum ncclEncryptionMode_t : unsigned {
  NCCL_ENCRYPTION_MODE_NONE = 0,
  NCCL_ENCRYPTION_MODE_PSK = 1
};

enum ncclHostCftMode_t : int {
  ncclHostCftDefault = kUndefInt,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3,
};

enum ncclNvlsHostMode_t : int {
  ncclNvlsHostModeDefault = kUndefInt,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX,
};

// NCCL only appends fields to the versioned structs. A struct for an older library must have the
// size and version of that library; config_fields.inc lists the first version of each field.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = kApiMagic;
  unsigned version = kVersion;
#define FIELD(since, type, name, attribute, value) type name = value;
#include "config_fields.inc"
#undef FIELD
};

struct ncclConfigExt_t {
  ncclConfigExt_t* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
};

struct ncclCollConfig_t {
  size_t size = sizeof(ncclCollConfig_t);
  unsigned magic = kApiMagic;
  unsigned version = kVersion;
#define FIELD(since, type, name, attribute, value) type name = value;
#include "coll_config_fields.inc"
#undef FIELD
};

struct ncclSimInfo_t {
  size_t size = sizeof(ncclSimInfo_t);
  unsigned magic = kSimInfoMagic;
  unsigned version = kVersion;
  float estimatedTime = kUndefFloat;  // microseconds
};

struct ncclEncryptionConfig_t {
  size_t size = sizeof(ncclEncryptionConfig_t);
  unsigned magic = kApiMagic;
  unsigned version = kVersion;
  int mode = NCCL_ENCRYPTION_MODE_NONE;
  const char* psk = nullptr;
};

struct ncclWaitSignalDesc_t {
  int opCnt = 0;
  int peer = 0;
  int sigIdx = 0;
  int ctx = 0;
};

}  // namespace pynccl::abi
