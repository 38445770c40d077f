"""The extension module. Its public interfaces are pynccl.raw and pynccl.nccl."""

import enum
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar, Literal, SupportsIndex, TypeAlias, TypeVar, final, overload

import torch
from typing_extensions import CapsuleType, Self, dataclass_transform, disjoint_base

from pynccl import memory
from pynccl._internal import borrowing, creation, explanation, recovery
from pynccl._internal import device_comm as _device_comm
from pynccl._internal.coll_config import CollConfig
from pynccl._internal.records import FlightRecord, MemoryStats
from pynccl._internal.team import Team
from pynccl.errors import NcclError, NcclTimeoutError
from pynccl.mirror.base.errors import BackendError
from pynccl.mirror.group import call as mirror_call
from pynccl.mirror.group import comm_stream as mirror_comm_stream
from pynccl.mirror.group import process_group as mirror_process_group
from pynccl.mirror.group import work as mirror_work
from pynccl.store import Store

class OverlapError(ValueError): ...

# Anything with DLPack, an array interface, or an integer address.
_Tensor: TypeAlias = object
# A pynccl, torch or CuPy stream, an object with __cuda_stream__, or an integer.
_Stream: TypeAlias = object
# A RedOp, a value of torch.distributed.ReduceOp, or "sum", "avg", "max", "min" or "prod".
_Op: TypeAlias = RedOp | torch.distributed.ReduceOp | torch.distributed.ReduceOp.RedOpType | str
_OnTimeout: TypeAlias = Literal["raise", "abort"] | Callable[[Communicator, NcclError], object]
_Id: TypeAlias = bytes | bytearray | memoryview
_T = TypeVar("_T")

__version__: str

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

NCCL_WIN_DEFAULT: int
NCCL_WIN_COLL_SYMMETRIC: int
NCCL_WIN_STRICT_ORDERING: int
NCCL_WIN_GIN_ONLY: int
NCCL_WIN_CFT_COUNTED: int
NCCL_WIN_REQUIRED_ALIGNMENT: int
NCCL_CTA_POLICY_DEFAULT: int
NCCL_CTA_POLICY_EFFICIENCY: int
NCCL_CTA_POLICY_ZERO: int
NCCL_SHRINK_DEFAULT: int
NCCL_SHRINK_ABORT: int
NCCL_REVOKE_DEFAULT: int
NCCL_SUSPEND_MEM: int

class ncclConfig_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    blocking: int
    cgaClusterSize: int
    minCTAs: int
    maxCTAs: int
    netName: str | None
    splitShare: int
    trafficClass: int
    commName: str | None
    collnetEnable: int
    CTAPolicy: int
    shrinkShare: int
    nvlsCTAs: int
    nChannelsPerNetPeer: int
    nvlinkCentricSched: int
    graphUsageMode: int
    numRmaCtx: int
    maxP2pPeers: int
    graphStreamOrdering: int
    launchOrderImplicit: int
    numRmaSig: int
    rmaEagerInit: int
    hostCftMode: int
    nvlsHostMode: int

class ncclCollConfig_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    ext: int
    minCTAs: int
    maxCTAs: int
    nvlsCTAs: int
    cgaClusterSize: int
    algSelection: str | None
    forceAlgSelection: int
    CTAPolicy: int
    userProfilerTag: int
    launchCompletionEvent: int

class ncclEncryptionConfig_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    mode: int
    @property
    def psk(self) -> str | None: ...
    @psk.setter
    def psk(self, value: str | bytes | None, /) -> None: ...

class ncclTeam_t:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, nRanks: int, rank: int, stride: int) -> None: ...
    def address(self) -> int: ...
    nRanks: int
    rank: int
    stride: int

class ncclMultimemHandle_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    mcBasePtr: int

class ncclLsaBarrierHandle_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    bufHandle: int
    nBarriers: int

class ncclGinBarrierHandle_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    signal0: int

class ncclLLA2AHandle_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    bufHandle: int
    nSlots: int

class ncclDevResourceRequirements_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    next: int
    bufferSize: int
    bufferAlign: int
    outBufferHandle: int
    ginSignalCount: int
    ginCounterCount: int
    outGinSignalStart: int
    outGinCounterStart: int

class ncclTeamRequirements_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    next: int
    team: ncclTeam_t
    multimem: bool
    outMultimemHandle: int

class ncclDevCommRequirements_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    resourceRequirementsList: int
    teamRequirementsList: int
    lsaMultimem: bool
    barrierCount: int
    lsaBarrierCount: int
    railGinBarrierCount: int
    lsaLLA2ABlockCount: int
    lsaLLA2ASlotCount: int
    ginForceEnable: bool
    ginContextCount: int
    ginSignalCount: int
    ginCounterCount: int
    ginConnectionType: int
    ginExclusiveContexts: bool
    ginQueueDepth: int
    ginTrafficClass: int
    worldGinBarrierCount: int
    ginStrongSignalsRequired: bool
    ginVaSignalsRequired: bool
    ginCustomStride: int
    ginType: int
    useRuntimeVersion: bool
    cftCaps: int
    cftBarrierCount: int

class ncclCommProperties_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    rank: int
    nRanks: int
    cudaDev: int
    nvmlDev: int
    deviceApiSupport: bool
    multimemSupport: bool
    ginType: int
    nLsaTeams: int
    hostRmaSupport: bool
    railedGinType: int
    commHash: int
    ginMinStride: int
    ginConnectionType: int
    @property
    def ginSupport(self) -> tuple[bool, ...]: ...
    devCommRuntimeVersionSize: int
    cftSupport: bool
    cftMulticastSupport: bool
    cftCountedSupport: bool

class ncclDevComm_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    magic: int
    version: int
    rank: int
    nRanks: int
    lsaRank: int
    lsaSize: int
    resourceWindow: int
    lsaMultimem: ncclMultimemHandle_t
    lsaBarrier: ncclLsaBarrierHandle_t
    railGinBarrier: ncclGinBarrierHandle_t
    ginSignalCount: int
    ginCounterCount: int
    ginContextCount: int
    def __bytes__(self) -> bytes: ...

class ncclSimInfo_t:
    def __init__(self) -> None: ...
    def address(self) -> int: ...
    size: int
    magic: int
    version: int
    estimatedTime: float

class ncclWaitSignalDesc_t:
    def __init__(self, opCnt: int = 0, peer: int = 0, sigIdx: int = 0, ctx: int = 0) -> None: ...
    def address(self) -> int: ...
    opCnt: int
    peer: int
    sigIdx: int
    ctx: int

class UniqueId:
    def __init__(self, data: _Id) -> None: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Library:
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def memory(self) -> str: ...
    @property
    def driver_path(self) -> str: ...
    def driver_version(self) -> int: ...
    def device_names(self) -> list[str]: ...
    def functions(self) -> dict[str, tuple[int, bool]]: ...
    # From csrc/abi/nccl_functions.inc by tools/stub.py:
    def ncclGetVersion(self) -> int: ...
    def ncclGetUniqueId(self) -> UniqueId: ...
    def ncclGetErrorString(self, result: int) -> str | None: ...
    def ncclGetLastError(self, comm: int) -> str | None: ...
    def ncclResetDebugInit(self) -> None: ...
    def ncclSetEncryption(self, config: ncclEncryptionConfig_t | None) -> None: ...
    def ncclCommInitRank(self, nranks: int, commId: UniqueId | bytes, rank: int) -> int: ...
    def ncclCommInitRankConfig(
        self, nranks: int, commId: UniqueId | bytes, rank: int, config: ncclConfig_t | None
    ) -> int: ...
    def ncclCommInitRankScalable(
        self,
        nranks: int,
        myrank: int,
        nId: int,
        commIds: Sequence[UniqueId | bytes] | None,
        config: ncclConfig_t | None,
    ) -> int: ...
    def ncclCommInitAll(self, ndev: int, devlist: Sequence[int] | None) -> list[int]: ...
    def ncclCommFinalize(self, comm: int) -> None: ...
    def ncclCommDestroy(self, comm: int) -> None: ...
    def ncclCommAbort(self, comm: int) -> None: ...
    def ncclCommRevoke(self, comm: int, revokeFlags: int) -> None: ...
    def ncclCommSplit(
        self, comm: int, color: int, key: int, config: ncclConfig_t | None
    ) -> int: ...
    def ncclCommShrink(
        self,
        comm: int,
        excludeRanksList: Sequence[int] | None,
        excludeRanksCount: int,
        config: ncclConfig_t | None,
        shrinkFlags: int,
    ) -> int: ...
    def ncclCommGetUniqueId(self, comm: int) -> UniqueId: ...
    def ncclCommGrow(
        self,
        comm: int,
        nRanks: int,
        uniqueId: UniqueId | bytes | None,
        rank: int,
        config: ncclConfig_t | None,
    ) -> int: ...
    def ncclCommGetAsyncError(self, comm: int) -> int: ...
    def ncclCommCount(self, comm: int) -> int: ...
    def ncclCommCuDevice(self, comm: int) -> int: ...
    def ncclCommUserRank(self, comm: int) -> int: ...
    def ncclCommSuspend(self, comm: int, flags: int) -> None: ...
    def ncclCommResume(self, comm: int) -> None: ...
    def ncclCommMemStats(self, comm: int, stat: int) -> int: ...
    def ncclMemAlloc(self, size: int) -> int: ...
    def ncclMemFree(self, ptr: int | None) -> None: ...
    def ncclCommRegister(self, comm: int, buff: int | None, size: int) -> int: ...
    def ncclCommDeregister(self, comm: int, handle: int | None) -> None: ...
    def ncclCommWindowRegister(
        self, comm: int, buff: int | None, size: int, winFlags: int
    ) -> int: ...
    def ncclCommWindowDeregister(self, comm: int, win: int) -> None: ...
    def ncclWinGetUserPtr(self, comm: int, win: int) -> int: ...
    def ncclRedOpCreatePreMulSum(
        self, scalar: int | None, datatype: int, residence: int, comm: int
    ) -> int: ...
    def ncclRedOpDestroy(self, op: int, comm: int) -> None: ...
    def ncclReduce(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        op: int,
        root: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclBcast(
        self, buff: int | None, count: int, datatype: int, root: int, comm: int, stream: int
    ) -> None: ...
    def ncclBroadcast(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclAllReduce(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        op: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclReduceScatter(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        recvcount: int,
        datatype: int,
        op: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclAllGather(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        sendcount: int,
        datatype: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclAlltoAll(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclGather(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclScatter(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclAllReduceConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        op: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclBroadcastConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclReduceConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        op: int,
        root: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclAllGatherConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        sendcount: int,
        datatype: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclReduceScatterConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        recvcount: int,
        datatype: int,
        op: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclAlltoAllConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclGatherConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclScatterConfig(
        self,
        sendbuff: int | None,
        recvbuff: int | None,
        count: int,
        datatype: int,
        root: int,
        comm: int,
        stream: int,
        config: ncclCollConfig_t | None,
    ) -> None: ...
    def ncclSend(
        self, sendbuff: int | None, count: int, datatype: int, peer: int, comm: int, stream: int
    ) -> None: ...
    def ncclRecv(
        self, recvbuff: int | None, count: int, datatype: int, peer: int, comm: int, stream: int
    ) -> None: ...
    def ncclPutSignal(
        self,
        localbuff: int | None,
        count: int,
        datatype: int,
        peer: int,
        peerWin: int,
        peerWinOffset: int,
        sigIdx: int,
        ctx: int,
        flags: int,
        comm: int,
        stream: int,
    ) -> None: ...
    def ncclSignal(
        self, peer: int, sigIdx: int, ctx: int, flags: int, comm: int, stream: int
    ) -> None: ...
    def ncclWaitSignal(
        self, nDesc: int, signalDescs: Sequence[ncclWaitSignalDesc_t] | None, comm: int, stream: int
    ) -> None: ...
    def ncclGroupStart(self) -> None: ...
    def ncclGroupEnd(self) -> None: ...
    def ncclGroupSimulateEnd(self, simInfo: ncclSimInfo_t) -> ncclSimInfo_t: ...
    def ncclParamBind(self, key: str) -> int: ...
    def ncclParamGetI8(self, h: int) -> int: ...
    def ncclParamGetI16(self, h: int) -> int: ...
    def ncclParamGetI32(self, h: int) -> int: ...
    def ncclParamGetI64(self, h: int) -> int: ...
    def ncclParamGetU8(self, h: int) -> int: ...
    def ncclParamGetU16(self, h: int) -> int: ...
    def ncclParamGetU32(self, h: int) -> int: ...
    def ncclParamGetU64(self, h: int) -> int: ...
    def ncclParamGetStr(self, h: int) -> str | None: ...
    def ncclParamGet(self, h: int, maxLen: int) -> tuple[bytes, int]: ...
    def ncclParamGetParameter(self, key: str) -> tuple[str | None, int]: ...
    def ncclParamGetAllParameterKeys(self) -> tuple[list[str], int]: ...
    def ncclParamDumpAll(self) -> None: ...
    def ncclCommQueryProperties(
        self, comm: int, props: ncclCommProperties_t
    ) -> ncclCommProperties_t: ...
    def ncclDevCommCreate(
        self, comm: int, reqs: ncclDevCommRequirements_t | None
    ) -> ncclDevComm_t: ...
    def ncclDevCommDestroy(self, comm: int, devComm: ncclDevComm_t | None) -> None: ...
    def ncclLsaBarrierCreateRequirement(
        self,
        team: ncclTeam_t,
        nBarriers: int,
        outHandle: ncclLsaBarrierHandle_t,
        outReq: ncclDevResourceRequirements_t,
    ) -> None: ...
    def ncclGinBarrierCreateRequirement(
        self,
        comm: int,
        team: ncclTeam_t,
        nBarriers: int,
        outHandle: ncclGinBarrierHandle_t,
        outReq: ncclDevResourceRequirements_t,
    ) -> None: ...
    def ncclLLA2ACalcSlots(self, maxElts: int, maxEltSize: int) -> int: ...
    def ncclLLA2ACreateRequirement(
        self,
        nBlocks: int,
        nSlots: int,
        outHandle: ncclLLA2AHandle_t,
        outReq: ncclDevResourceRequirements_t,
    ) -> None: ...
    def ncclTeamWorld(self, comm: int) -> ncclTeam_t: ...
    def ncclTeamLsa(self, comm: int) -> ncclTeam_t: ...
    def ncclTeamRail(self, comm: int) -> ncclTeam_t: ...
    def ncclTeamCft(self, comm: int, mode: int) -> ncclTeam_t: ...
    def ncclTeamCftMultimem(self, comm: int) -> ncclTeam_t: ...
    def ncclTeamRankToWorld(self, comm: int, team: ncclTeam_t, rank: int) -> int: ...
    def ncclTeamRankToLsa(self, comm: int, team: ncclTeam_t, rank: int) -> int: ...
    def ncclGetLsaDevicePointer(self, window: int, offset: int, lsaRank: int) -> int: ...
    def ncclGetPeerDevicePointer(self, window: int, offset: int, peer: int) -> int: ...
    def ncclGetLsaMultimemDevicePointer(self, window: int, offset: int) -> int: ...
    def ncclGetMultimemDevicePointer(
        self, window: int, offset: int, multimem: ncclMultimemHandle_t
    ) -> int: ...
    def ncclGetMultimemDeviceLeInfo(self, window: int, offset: int) -> tuple[int, int]: ...
    def ncclGetCftDeviceLeInfo(
        self, window: int, offset: int, peerCft: int, cftTeam: ncclTeam_t
    ) -> tuple[int, int]: ...
    def ncclGetPeerDeviceLeInfo(
        self, window: int, offset: int, peerWorld: int
    ) -> tuple[int, int]: ...
    # End of the generated methods.

def borrow_handle(
    library: Library, handle: int, owner: object, ask: Callable[[], int] | None
) -> Communicator: ...
def borrow_capsule(capsule: object) -> Communicator: ...
def check_outside_group(method: str) -> None: ...
def query_properties(communicator: Communicator) -> ncclCommProperties_t: ...
def create_device_comm(
    communicator: Communicator,
    fields: ncclDevCommRequirements_t,
    buffers: list[int],
    teams: Iterable[Team],
    version: int,
) -> DeviceComm: ...
def check_creation(
    nranks: SupportsIndex, rank: SupportsIndex, config: Config | None, store: Store
) -> tuple[int, int, float]: ...
def can_agree(communicator: Communicator) -> bool: ...
def begin_recovery(communicator: Communicator) -> None: ...
def agree(communicator: Communicator, seconds: float, lost: list[int]) -> list[int] | None: ...
def create_recovered(
    parent: Communicator,
    lost: list[int],
    seconds: float,
    config: Config | None,
    unique_id: bytes | None = None,
) -> Communicator: ...
def open_library(path: str) -> Library: ...
def loaded_path(soname: str) -> str: ...
def version_text(version: int) -> str: ...
def get_unique_id(library: Library) -> UniqueId: ...

# Each attribute of the class is also a keyword of its constructor.
@dataclass_transform(eq_default=False, kw_only_default=True)
def _settings(*, match_args: bool) -> Callable[[type[_T]], type[_T]]: ...

@_settings(match_args=False)
class Config:
    blocking: int | None = None
    cga_cluster_size: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    net_name: str | None = None
    split_share: int | None = None
    traffic_class: int | None = None
    comm_name: str | None = None
    collnet_enable: int | None = None
    cta_policy: int | None = None
    shrink_share: int | None = None
    nvls_ctas: int | None = None
    n_channels_per_net_peer: int | None = None
    nvlink_centric_sched: int | None = None
    graph_usage_mode: int | None = None
    num_rma_ctx: int | None = None
    max_p2p_peers: int | None = None
    graph_stream_ordering: int | None = None
    launch_order_implicit: int | None = None
    num_rma_sig: int | None = None
    rma_eager_init: int | None = None
    host_cft_mode: int | None = None
    nvls_host_mode: int | None = None
    check: int | Literal["every"] | None = None
    init_timeout: float | None = None
    on_timeout: _OnTimeout | None = None
    timeout: float | None = None

class RedOp:
    SUM: ClassVar[RedOp]
    PROD: ClassVar[RedOp]
    MAX: ClassVar[RedOp]
    MIN: ClassVar[RedOp]
    AVG: ClassVar[RedOp]
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def close(self) -> None: ...

class Stream:
    def __init__(self, library: Library, device: int = -1, priority: int = 0) -> None: ...
    @property
    def handle(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def library(self) -> Library: ...
    @property
    def priority(self) -> int: ...
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool: ...
    def wait(self, event: Event) -> None: ...
    def launch(self, function: Callable[[], object]) -> None: ...
    def launch_native(self, function: object, argument: object = 0) -> None: ...
    def close(self) -> None: ...

class Graph:
    def __init__(self, library: Library, stream: _Stream, mode: str = "thread_local") -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def launch(self, stream: _Stream = None) -> None: ...
    def upload(self, stream: _Stream = None) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...

class Event:
    def __init__(self, library: Library, device: int = -1, timing: bool = False) -> None: ...
    @property
    def handle(self) -> int: ...
    def record(self, stream: _Stream) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Event) -> float: ...
    def close(self) -> None: ...

class Buffer:
    @property
    def ptr(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    def close(self) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...

class Registration:
    @property
    def handle(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Window:
    @property
    def handle(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def user_pointer(self) -> int: ...
    def peer(
        self,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        shape: SupportsIndex | Sequence[int] | None = None,
        dtype: object = None,
    ) -> Buffer: ...
    def lsa_pointer(self, lsa_rank: SupportsIndex, offset: SupportsIndex = 0) -> int | None: ...
    def peer_pointer(self, rank: SupportsIndex, offset: SupportsIndex = 0) -> int | None: ...
    def peer_pointers(self, offset: SupportsIndex = 0) -> Buffer: ...
    def multimem_pointer(self, offset: SupportsIndex = 0) -> int | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class SymmetricBuffer(Buffer):
    @property
    def window(self) -> Window: ...
    def peer(self, rank: SupportsIndex) -> Buffer: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class DeviceBuffer:
    @property
    def nbytes(self) -> int: ...
    @property
    def handle(self) -> int: ...
    @property
    def address(self) -> int: ...
    def peer(self, lsa_rank: SupportsIndex) -> int: ...

class DeviceComm:
    @property
    def rank(self) -> int: ...
    @property
    def nranks(self) -> int: ...
    @property
    def lsa_rank(self) -> int: ...
    @property
    def lsa_size(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def buffers(self) -> tuple[DeviceBuffer, ...]: ...
    @property
    def multimem_pointers(self) -> tuple[int | None, ...]: ...
    def __bytes__(self) -> bytes: ...
    as_argument = _device_comm.as_argument
    def pointer(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Arena:
    @staticmethod
    def of(library: Library) -> Arena: ...
    @property
    def library(self) -> Library: ...
    def allocate(self, size: SupportsIndex, device: SupportsIndex = -1) -> int: ...
    def deallocate(self, address: SupportsIndex, device: SupportsIndex = -1) -> None: ...
    def serve_torch(self) -> None: ...

class PoolRegistration:
    def __init__(self, arena: Arena, communicator: Communicator) -> None: ...
    @property
    def segments(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Inquiry:
    @property
    def store(self) -> Store: ...
    @property
    def comm(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def nranks(self) -> int: ...
    @property
    def what(self) -> str: ...
    def keep_waiting(self) -> None: ...
    def answer(self, text: str, missing: list[int] | None) -> None: ...

def sleep_at_exit() -> None: ...
def take_inquiry(seconds: float, *, ras: bool = False) -> Inquiry | None: ...
def members() -> list[tuple[Store, str, str | None, int]]: ...
def flight_record() -> dict[Communicator, list[FlightRecord]]: ...
def flight_dump_json(reason: str) -> str: ...
def write_new_file(path: str, data: bytes) -> None: ...
def start_trace(operations: int, graphs: bool) -> None: ...
def stop_trace(seconds: float) -> bytes: ...
def start_recording(path: str, bytes: int) -> None: ...
def stop_recording() -> str: ...
def path_of_process(path: str) -> str: ...
def set_profiler(
    function: Callable[[str, int, str], Callable[[], object]] | None,
) -> Callable[[str, int, str], Callable[[], object]] | None: ...
def begin_range(name: str, compute: bool, library: Library | None, stream: int) -> int: ...
def end_range(number: int, library: Library | None, stream: int) -> None: ...
def pack(
    bucket: _Tensor, offsets: list[int], sizes: list[int], tensors: list[Any]
) -> list[int]: ...
def unpack(
    bucket: _Tensor, offsets: list[int], sizes: list[int], tensors: list[Any]
) -> list[int]: ...
def checksum(tensor: _Tensor) -> int: ...
def flight_dump_path() -> str | None: ...
def set_process_rank(rank: int | None) -> None: ...

class deadline:
    def __init__(self, seconds: float) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Communicator:
    borrow = staticmethod(borrowing.borrow)
    device_comm = _device_comm.device_comm
    explain = explanation.explain_collective
    from_store = staticmethod(creation.from_store)
    properties = _device_comm.properties
    recover = recovery.recover
    register_pool = memory.register_pool
    def __init__(
        self,
        nranks: SupportsIndex,
        unique_id: UniqueId | _Id | list[UniqueId | _Id] | tuple[UniqueId | _Id, ...],
        rank: SupportsIndex,
        *,
        config: Config | None = None,
        provider: str | None = None,
        device: object = None,
        store: Store | None = None,
    ) -> None: ...
    @staticmethod
    def init_all(
        devices: SupportsIndex | Sequence[object], *, provider: str | None = None
    ) -> list[Communicator]: ...
    def split(
        self, color: int | None, key: int = 0, *, config: Config | None = None
    ) -> Communicator | None: ...
    def shrink(
        self, exclude: Sequence[SupportsIndex], *, abort: bool = False, config: Config | None = None
    ) -> Communicator: ...
    def grow(
        self,
        nranks: SupportsIndex,
        unique_id: UniqueId | _Id | None = None,
        *,
        config: Config | None = None,
    ) -> Communicator: ...
    @staticmethod
    def join(
        nranks: SupportsIndex,
        unique_id: UniqueId | _Id,
        rank: SupportsIndex,
        *,
        config: Config | None = None,
        provider: str | None = None,
        device: object = None,
        store: Store | None = None,
    ) -> Communicator: ...
    def get_unique_id(self) -> UniqueId: ...
    timeout: float | None
    on_timeout: _OnTimeout
    @property
    def expired(self) -> bool: ...
    @property
    def _timeout_error(self) -> NcclTimeoutError: ...
    def flight_record(self) -> list[FlightRecord]: ...
    def _set_name(self, name: str) -> None: ...
    def revoke(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def memory_stats(self) -> MemoryStats: ...
    def finalize(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def nranks(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def borrowed(self) -> bool: ...
    @property
    def revoked(self) -> bool: ...
    @property
    def library(self) -> Library: ...
    @property
    def provider(self) -> str: ...
    @property
    def handle(self) -> int: ...
    def async_error(self) -> NcclError | None: ...
    @property
    def ready(self) -> bool: ...
    def wait_ready(self, timeout: float | None = None) -> None: ...
    def register(self, buffer: _Tensor) -> Registration: ...
    def mem_alloc(
        self, shape: SupportsIndex | Sequence[int], dtype: object = "uint8"
    ) -> Buffer: ...
    def register_window(
        self,
        buffer: _Tensor,
        *,
        symmetric: bool | None = None,
        strict_ordering: bool = False,
        gin_only: bool = False,
        cft_counted: bool = False,
        count: SupportsIndex | None = None,
        dtype: object = None,
    ) -> Window: ...
    def symmetric_empty(
        self, shape: SupportsIndex | Sequence[int], dtype: object = "float32"
    ) -> SymmetricBuffer: ...
    def team_world(self) -> Team: ...
    def team_lsa(self) -> Team: ...
    def team_rail(self) -> Team: ...
    def rank_to_world(self, team: Team, rank: SupportsIndex) -> int: ...
    def rank_to_lsa(self, team: Team, rank: SupportsIndex) -> int | None: ...
    def put_signal(
        self,
        tensor: _Tensor,
        peer: SupportsIndex,
        window: Window,
        offset: SupportsIndex = 0,
        *,
        signal: SupportsIndex = 0,
        context: SupportsIndex = 0,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
    ) -> None: ...
    def signal(
        self,
        peer: SupportsIndex,
        *,
        signal: SupportsIndex = 0,
        context: SupportsIndex = 0,
        stream: _Stream | None = None,
    ) -> None: ...
    def wait_signal(
        self,
        peers: SupportsIndex | Iterable[SupportsIndex | ncclWaitSignalDesc_t] | dict[int, int],
        count: SupportsIndex = 1,
        *,
        signal: SupportsIndex = 0,
        context: SupportsIndex = 0,
        stream: _Stream | None = None,
    ) -> None: ...
    def pre_mul_sum(self, scalar: _Tensor, dtype: object) -> RedOp: ...
    def __pynccl_communicator__(self) -> object: ...
    def all_reduce(
        self,
        tensor: _Tensor,
        op: _Op | None = None,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def broadcast(
        self,
        tensor: _Tensor,
        root: SupportsIndex,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def reduce(
        self,
        tensor: _Tensor,
        root: SupportsIndex,
        op: _Op | None = None,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def barrier(self, *, stream: _Stream = None) -> None: ...
    def all_gather(
        self,
        tensor: _Tensor,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def reduce_scatter(
        self,
        tensor: _Tensor,
        op: _Op | None = None,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def all_to_all(
        self,
        tensor: _Tensor,
        *,
        out: _Tensor,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def gather(
        self,
        tensor: _Tensor,
        root: SupportsIndex,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def scatter(
        self,
        tensor: _Tensor | None,
        root: SupportsIndex,
        *,
        out: _Tensor | None = None,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
        config: CollConfig | None = None,
    ) -> None: ...
    def send(
        self,
        tensor: _Tensor,
        peer: SupportsIndex,
        *,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
    ) -> None: ...
    def recv(
        self,
        tensor: _Tensor,
        peer: SupportsIndex,
        *,
        stream: _Stream | None = None,
        count: SupportsIndex | None = None,
        dtype: object = None,
    ) -> None: ...

class GroupContext:
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def group() -> GroupContext: ...

class Plan:
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def __call__(self, *, stream: _Stream | None = None) -> None: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...

def plan() -> Plan: ...

class Simulation:
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    @property
    def estimated_time(self) -> float | None: ...

def simulate() -> Simulation: ...

# The C++ parts of pynccl.mirror's classes and functions.

_F = TypeVar("_F", bound=Callable[..., Any])

def set_operation_range(factory: Callable[[str], AbstractContextManager[Any]] | None) -> None: ...

class CommStream:
    def __init__(self, comm: Communicator, priority: int = 0) -> None: ...
    @property
    def comm(self) -> Communicator: ...
    @property
    def stream(self) -> Stream: ...
    def issue(self, call: mirror_call.Call) -> mirror_work.Work | None: ...
    def oldest(self) -> int | None: ...

@disjoint_base
class Work:
    @property
    def _comm_stream(self) -> object: ...
    @property
    def _name(self) -> str: ...
    @property
    def _source(self) -> int | None: ...
    def wait(self, timeout: timedelta | None = None) -> bool: ...
    def _wait_for(self, seconds: float, /) -> bool: ...
    def is_completed(self) -> bool: ...
    def exception(self) -> BackendError | None: ...
    def result(self) -> list[torch.Tensor]: ...

class ProcessGroup:
    _batch: Any
    def __init__(self, rank: int, rank_of: dict[int, int]) -> None: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def _comm_stream(self, device_type: str) -> mirror_comm_stream.CommStream | None: ...
    def _set_comm_stream(self, device_type: str, comm_stream: CommStream) -> None: ...
    def comm_streams(self) -> dict[str, mirror_comm_stream.CommStream]: ...
    def _set_pair(
        self, device_type: str, peer: int, sending: CommStream, receiving: CommStream
    ) -> None: ...
    def _check_valid(self) -> None: ...
    def _use_own_for_transfers(self, device_type: str) -> None: ...
    def _invalidate(self, reason: str, keep: bool = False) -> None: ...

def set_default_group(group: ProcessGroup | None) -> None: ...
def default_group() -> ProcessGroup | None: ...

@final
class FastFunction:
    def __call__(self, *args: object, **kwargs: object) -> object: ...

def fast(function: _F) -> _F: ...
def set_work_class(work: type[Work]) -> None: ...
def set_group_classes(
    tensor: type, group: type[ProcessGroup], operators: list[tuple[object, RedOp]]
) -> None: ...

@disjoint_base
class P2POp:
    op: Callable[..., Any]
    tensor: torch.Tensor
    peer: int
    group: mirror_process_group.ProcessGroup
    tag: int
    group_peer: int
    __signature__: inspect.Signature
    def __init__(
        self,
        op: Callable[..., Any],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: mirror_process_group.ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None: ...

def complete_p2p_ops(function: _F) -> _F: ...
