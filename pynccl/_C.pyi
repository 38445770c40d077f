"""The extension module; pynccl.raw and pynccl.nccl are its public faces."""

import enum
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, SupportsFloat, SupportsIndex, overload

from typing_extensions import Buffer as _BytesLike
from typing_extensions import CapsuleType, Self, disjoint_base

class ncclResult_t(enum.IntEnum):
    ncclSuccess = 0
    ncclUnhandledCudaError = 1
    ncclSystemError = 2
    ncclInternalError = 3
    ncclInvalidArgument = 4
    ncclInvalidUsage = 5
    ncclRemoteError = 6
    ncclInProgress = 7
    ncclTimeout = 8

class ncclRedOp_t(enum.IntEnum):
    ncclSum = 0
    ncclProd = 1
    ncclMax = 2
    ncclMin = 3
    ncclAvg = 4

class ncclDataType_t(enum.IntEnum):
    ncclInt8 = 0
    ncclUint8 = 1
    ncclInt32 = 2
    ncclUint32 = 3
    ncclInt64 = 4
    ncclUint64 = 5
    ncclFloat16 = 6
    ncclFloat32 = 7
    ncclFloat64 = 8
    ncclBfloat16 = 9
    ncclFloat8e4m3 = 10
    ncclFloat8e5m2 = 11

class ncclScalarResidence_t(enum.IntEnum):
    ncclScalarDevice = 0
    ncclScalarHostImmediate = 1

class ncclCommMemStat_t(enum.IntEnum):
    ncclStatGpuMemSuspend = 0
    ncclStatGpuMemSuspended = 1
    ncclStatGpuMemPersist = 2
    ncclStatGpuMemTotal = 3
