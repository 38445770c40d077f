"""The functions of nccl.h and nccl_device.h, one to one.

``load()`` returns a library whose methods are NCCL's functions under their own names, with the
parameters of nccl.h: addresses and handles are integers, NULL is None, structs are classes of this
module. A method returns the values that C returns through pointers. A result other than
``ncclSuccess`` or ``ncclInProgress`` raises :class:`pynccl.errors.NcclError`. The GIL is released
during every call.

    lib = raw.load("host")
    uid = lib.ncclGetUniqueId()
    comm = lib.ncclCommInitRank(1, uid, 0)
    lib.ncclAllReduce(send, recv, count, raw.ncclFloat32, raw.ncclSum, comm, 0)

Only argument types are checked: a wrong address crashes the process, as in C. A function that the
loaded library lacks raises :class:`pynccl.errors.MissingFunctionError`, which names the first NCCL
version that provides it.
"""

from __future__ import annotations

from pynccl._C import (
    NCCL_CTA_POLICY_DEFAULT,
    NCCL_CTA_POLICY_EFFICIENCY,
    NCCL_CTA_POLICY_ZERO,
    NCCL_REVOKE_DEFAULT,
    NCCL_SHRINK_ABORT,
    NCCL_SHRINK_DEFAULT,
    NCCL_SUSPEND_MEM,
    NCCL_WIN_CFT_COUNTED,
    NCCL_WIN_COLL_SYMMETRIC,
    NCCL_WIN_DEFAULT,
    NCCL_WIN_GIN_ONLY,
    NCCL_WIN_REQUIRED_ALIGNMENT,
    NCCL_WIN_STRICT_ORDERING,
    Library,
    UniqueId,
    ncclCollConfig_t,
    ncclCommMemStat_t,
    ncclCommProperties_t,
    ncclConfig_t,
    ncclDataType_t,
    ncclDevComm_t,
    ncclDevCommRequirements_t,
    ncclDevResourceRequirements_t,
    ncclEncryptionConfig_t,
    ncclGinBarrierHandle_t,
    ncclLLA2AHandle_t,
    ncclLsaBarrierHandle_t,
    ncclMultimemHandle_t,
    ncclRedOp_t,
    ncclResult_t,
    ncclScalarResidence_t,
    ncclSimInfo_t,
    ncclTeam_t,
    ncclTeamRequirements_t,
    ncclWaitSignalDesc_t,
)
from pynccl.libraries import load

__all__ = [
    "NCCL_CONFIG_UNDEF_INT",
    "NCCL_CTA_POLICY_DEFAULT",
    "NCCL_CTA_POLICY_EFFICIENCY",
    "NCCL_CTA_POLICY_ZERO",
    "NCCL_REVOKE_DEFAULT",
    "NCCL_SHRINK_ABORT",
    "NCCL_SHRINK_DEFAULT",
    "NCCL_SPLIT_NOCOLOR",
    "NCCL_SUSPEND_MEM",
    "NCCL_UNIQUE_ID_BYTES",
    "NCCL_WIN_CFT_COUNTED",
    "NCCL_WIN_COLL_SYMMETRIC",
    "NCCL_WIN_DEFAULT",
    "NCCL_WIN_GIN_ONLY",
    "NCCL_WIN_REQUIRED_ALIGNMENT",
    "NCCL_WIN_STRICT_ORDERING",
    "Library",
    "UniqueId",
    "load",
    "ncclAvg",
    "ncclBfloat16",
    "ncclCollConfig_t",
    "ncclCommMemStat_t",
    "ncclCommProperties_t",
    "ncclConfig_t",
    "ncclDataType_t",
    "ncclDevCommRequirements_t",
    "ncclDevComm_t",
    "ncclDevResourceRequirements_t",
    "ncclEncryptionConfig_t",
    "ncclFloat8e4m3",
    "ncclFloat8e5m2",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclGinBarrierHandle_t",
    "ncclInProgress",
    "ncclInt8",
    "ncclInt32",
    "ncclInt64",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclLLA2AHandle_t",
    "ncclLsaBarrierHandle_t",
    "ncclMax",
    "ncclMin",
    "ncclMultimemHandle_t",
    "ncclProd",
    "ncclRedOp_t",
    "ncclRemoteError",
    "ncclResult_t",
    "ncclScalarDevice",
    "ncclScalarHostImmediate",
    "ncclScalarResidence_t",
    "ncclSimInfo_t",
    "ncclSuccess",
    "ncclSum",
    "ncclSystemError",
    "ncclTeamRequirements_t",
    "ncclTeam_t",
    "ncclTimeout",
    "ncclUint8",
    "ncclUint32",
    "ncclUint64",
    "ncclUnhandledCudaError",
    "ncclWaitSignalDesc_t",
]

NCCL_UNIQUE_ID_BYTES = 128
NCCL_CONFIG_UNDEF_INT = -(2**31)
NCCL_SPLIT_NOCOLOR = -1

ncclSuccess = ncclResult_t.ncclSuccess
ncclUnhandledCudaError = ncclResult_t.ncclUnhandledCudaError
ncclSystemError = ncclResult_t.ncclSystemError
ncclInternalError = ncclResult_t.ncclInternalError
ncclInvalidArgument = ncclResult_t.ncclInvalidArgument
ncclInvalidUsage = ncclResult_t.ncclInvalidUsage
ncclRemoteError = ncclResult_t.ncclRemoteError
ncclInProgress = ncclResult_t.ncclInProgress
ncclTimeout = ncclResult_t.ncclTimeout

ncclSum = ncclRedOp_t.ncclSum
ncclProd = ncclRedOp_t.ncclProd
ncclMax = ncclRedOp_t.ncclMax
ncclMin = ncclRedOp_t.ncclMin
ncclAvg = ncclRedOp_t.ncclAvg

ncclInt8 = ncclDataType_t.ncclInt8
ncclUint8 = ncclDataType_t.ncclUint8
ncclInt32 = ncclDataType_t.ncclInt32
ncclUint32 = ncclDataType_t.ncclUint32
ncclInt64 = ncclDataType_t.ncclInt64
ncclUint64 = ncclDataType_t.ncclUint64
ncclFloat16 = ncclDataType_t.ncclFloat16
ncclFloat32 = ncclDataType_t.ncclFloat32
ncclFloat64 = ncclDataType_t.ncclFloat64
ncclBfloat16 = ncclDataType_t.ncclBfloat16
ncclFloat8e4m3 = ncclDataType_t.ncclFloat8e4m3
ncclFloat8e5m2 = ncclDataType_t.ncclFloat8e5m2

ncclScalarDevice = ncclScalarResidence_t.ncclScalarDevice
ncclScalarHostImmediate = ncclScalarResidence_t.ncclScalarHostImmediate
