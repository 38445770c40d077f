"""Communicator.properties() and device_comm(), and DeviceComm.as_argument()."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeVar

from pynccl import _C
from pynccl._internal.arguments import integer, wrong_type

if TYPE_CHECKING:
    import numpy as np

    from pynccl._C import Communicator, DeviceComm
    from pynccl._internal.team import Team

__all__ = ["CommProperties", "as_argument", "device_comm", "properties"]

_GIN_TYPES = {"none": 0, "proxy": 2, "gdaki": 3, "gpi": 4, "efa_gda": 5}  # ncclGinType_t
_GIN_CONNECTIONS = {"none": 0, "full": 1, "rail": 2, "custom": 3}  # ncclGinConnectionType_t
_T = TypeVar("_T")


@dataclass(frozen=True)
class CommProperties:
    """The properties of a communicator (ncclCommProperties_t), from Communicator.properties().

    Properties that the loaded library does not report are None.

    Attributes:
        rank: the rank.
        nranks: the number of ranks.
        cuda_device: the CUDA device's ordinal.
        nvml_device: the NVML device's index.
        device_api_support: whether device communicators can be created.
        multimem_support: whether multimem instructions are supported.
        gin_type: how kernels reach other LSA teams: "none", "proxy", "gdaki", "gpi" or "efa_gda".
        n_lsa_teams: the number of LSA teams (NCCL 2.29.7).
        host_rma_support: whether one-sided operations of the host are supported (NCCL 2.29.7).
        railed_gin_type: like gin_type, within rails (NCCL 2.29.7).
        comm_hash: a number that is equal on all ranks (NCCL 2.31).
        gin_min_stride: the minimum stride of GIN connections (NCCL 2.31).
        gin_connection_type: the ranks that GIN can connect: "none", "full", "rail" or "custom"
            (NCCL 2.31).
        gin_support: the names of the supported GIN types (NCCL 2.31).
        dev_comm_size: the size of this library's ncclDevComm in bytes (NCCL 2.31).
        cft_support: whether CFT is supported (NCCL 2.32).
        cft_multicast_support: whether CFT multicast is supported (NCCL 2.32).
        cft_counted_support: whether counted CFT windows are supported (NCCL 2.32).
    """

    rank: int
    nranks: int
    cuda_device: int
    nvml_device: int
    device_api_support: bool
    multimem_support: bool
    gin_type: str
    n_lsa_teams: int | None
    host_rma_support: bool | None
    railed_gin_type: str | None
    comm_hash: int | None
    gin_min_stride: int | None
    gin_connection_type: str | None
    gin_support: tuple[str, ...] | None
    dev_comm_size: int | None
    cft_support: bool | None
    cft_multicast_support: bool | None
    cft_counted_support: bool | None


def properties(comm: Communicator) -> CommProperties:
    """The properties of the communicator (ncclCommQueryProperties, NCCL 2.29).

    Args:
        comm: the communicator.

    Returns:
        CommProperties.

    Raises:
        ValueError: the communicator is closed.
        MissingFunctionError: the library is older than NCCL 2.29.
        NcclError: NCCL failed.
    """
    p = _C.query_properties(comm)
    version = comm.library.version

    def since(first: int, value: _T) -> _T | None:
        return value if version >= first else None

    supported = (kind for kind, supports in enumerate(p.ginSupport) if kind and supports)
    return CommProperties(
        rank=p.rank,
        nranks=p.nRanks,
        cuda_device=p.cudaDev,
        nvml_device=p.nvmlDev,
        device_api_support=p.deviceApiSupport,
        multimem_support=p.multimemSupport,
        gin_type=_name(_GIN_TYPES, p.ginType),
        n_lsa_teams=since(22907, p.nLsaTeams),
        host_rma_support=since(22907, p.hostRmaSupport),
        railed_gin_type=since(22907, _name(_GIN_TYPES, p.railedGinType)),
        comm_hash=since(23100, p.commHash),
        gin_min_stride=since(23100, p.ginMinStride),
        gin_connection_type=since(23100, _name(_GIN_CONNECTIONS, p.ginConnectionType)),
        gin_support=since(23100, tuple(_name(_GIN_TYPES, kind) for kind in supported)),
        dev_comm_size=since(23100, p.devCommRuntimeVersionSize),
        cft_support=since(23200, p.cftSupport),
        cft_multicast_support=since(23200, p.cftMulticastSupport),
        cft_counted_support=since(23200, p.cftCountedSupport),
    )


def device_comm(
    comm: Communicator,
    *,
    lsa_barriers: SupportsIndex = 0,
    barriers: SupportsIndex = 0,
    rail_gin_barriers: SupportsIndex = 0,
    world_gin_barriers: SupportsIndex = 0,
    lsa_multimem: bool = False,
    gin_contexts: SupportsIndex = 4,
    gin_signals: SupportsIndex = 0,
    gin_counters: SupportsIndex = 0,
    gin_connection: Literal["none", "full", "rail", "custom"] = "none",
    gin_exclusive_contexts: bool = False,
    gin_queue_depth: SupportsIndex = 0,
    gin_traffic_class: SupportsIndex | None = None,
    gin_strong_signals: bool = True,
    gin_va_signals: bool = True,
    gin_stride: SupportsIndex = 1,
    gin_type: Literal["proxy", "gdaki", "gpi", "efa_gda"] | None = None,
    cft: SupportsIndex = 0,
    cft_barriers: SupportsIndex = 0,
    buffers: Iterable[SupportsIndex] = (),
    teams: Iterable[Team] = (),
    version: SupportsIndex | str | None = None,
) -> DeviceComm:
    """Create a device communicator (ncclDevCommCreate, NCCL 2.28).

    All ranks must call it with the same arguments, and create and close windows and device
    communicators in the same order. The call waits for all of them, even with a non-blocking
    communicator. Inside group() the device communicator is ready when the group ends.

    Args:
        comm: the communicator.
        lsa_barriers: the number of barriers of the LSA team: one for each thread block that uses
            one.
        barriers: the number of barriers of all ranks.
        rail_gin_barriers: the number of barriers of the rail team over GIN.
        world_gin_barriers: the number of barriers of all ranks over GIN.
        lsa_multimem: whether kernels use multimem instructions on the memory of the LSA team.
        gin_contexts: the number of GIN contexts, a hint for NCCL.
        gin_signals: the number of GIN signals.
        gin_counters: the number of GIN counters.
        gin_connection: the ranks that GIN connects: "none", "full", "rail", or "custom" for every
            gin_stride-th. From NCCL 2.29.7 on, it is required for every use of GIN.
        gin_exclusive_contexts: whether no other device communicator may share its contexts.
        gin_queue_depth: the number of entries of a GIN queue; 0 leaves the choice to NCCL.
        gin_traffic_class: the traffic class; None leaves the choice to NCCL.
        gin_strong_signals: False if kernels do not use strong signals.
        gin_va_signals: False if kernels do not use signals at addresses.
        gin_stride: the stride for gin_connection "custom".
        gin_type: "proxy", "gdaki", "gpi" or "efa_gda"; None allows any.
        cft: an ncclCftCap_t as an integer (NCCL 2.31).
        cft_barriers: the number of CFT barriers.
        buffers: sizes in bytes. For each, every rank allocates zero-filled memory of this size,
            which the LSA team can load from and store to.
        teams: the Teams that need addresses for multimem instructions.
        version: the version of the NCCL headers that the kernels are compiled with, as an
            NCCL_VERSION_CODE or a str such as "2.30.7". Kernels with pynccl/device.h export it as
            pynccl_device_version. None is the version of the loaded library.

    Returns:
        A DeviceComm. If it is deleted without close(), it stays until the communicator is closed.

    Raises:
        TypeError: an invalid argument.
        ValueError: an invalid argument, the communicator is closed, the library does not support
            that version, or the version does not support one of the settings. Nothing was called.
        MissingFunctionError: the library is older than NCCL 2.28.
        NcclError: NCCL does not support the device API between these ranks, or failed.
    """
    fields = _C.ncclDevCommRequirements_t()
    fields.lsaBarrierCount = _count("lsa_barriers", lsa_barriers)
    fields.barrierCount = _count("barriers", barriers)
    fields.railGinBarrierCount = _count("rail_gin_barriers", rail_gin_barriers)
    fields.worldGinBarrierCount = _count("world_gin_barriers", world_gin_barriers)
    fields.lsaMultimem = lsa_multimem
    fields.ginContextCount = _count("gin_contexts", gin_contexts)
    fields.ginSignalCount = _count("gin_signals", gin_signals)
    fields.ginCounterCount = _count("gin_counters", gin_counters)
    fields.ginConnectionType = _number("gin_connection", _GIN_CONNECTIONS, gin_connection)
    fields.ginExclusiveContexts = gin_exclusive_contexts
    fields.ginQueueDepth = _count("gin_queue_depth", gin_queue_depth)
    if gin_traffic_class is not None:
        fields.ginTrafficClass = _count("gin_traffic_class", gin_traffic_class)
    fields.ginStrongSignalsRequired = gin_strong_signals
    fields.ginVaSignalsRequired = gin_va_signals
    fields.ginCustomStride = _count("gin_stride", gin_stride)
    if gin_type is not None:
        fields.ginType = _number("gin_type", _GIN_TYPES, gin_type)
    fields.cftCaps = _count("cft", cft)
    fields.cftBarrierCount = _count("cft_barriers", cft_barriers)
    number = 0 if version is None else _version(version)
    if version is not None and number == 0:
        raise ValueError("version: it is 0")
    return _C.create_device_comm(comm, fields, _sizes(buffers), teams, number)


def as_argument(dc: DeviceComm, version: SupportsIndex | str | None) -> np.void:
    """The struct as a by-value argument of a kernel.

    Args:
        dc: the device communicator.
        version: the version of the NCCL headers that the kernel is compiled with, as an
            NCCL_VERSION_CODE or a str such as "2.30.7": the kernel's pynccl_device_version. None
            skips the check.

    Returns:
        A numpy.void of nbytes bytes, which CuPy's RawKernel accepts.

    Raises:
        TypeError: version is not a version.
        ValueError: the kernel is compiled with another version than dc.version, or the device
            communicator is closed.
        ImportError: NumPy is not installed.
    """
    content = bytes(dc)
    if version is not None and (number := _version(version)) != dc.version:
        raise ValueError(
            f"version: the kernel is compiled with NCCL {_C.version_text(number)}, and the device "
            f"communicator is for kernels compiled with {_C.version_text(dc.version)}"
        )
    import numpy as np

    argument: np.void = np.frombuffer(content, f"V{len(content)}")[0]
    return argument


def _name(table: dict[str, int], value: int) -> str:
    """Return the name of a number, or the number as text if it has no name yet."""
    return next((name for name, number in table.items() if number == value), str(value))


def _number(argument: str, table: dict[str, int], name: str) -> int:
    if name not in table:
        raise ValueError(f"{argument}: {name!r} is not one of {', '.join(map(repr, table))}")
    return table[name]


def _count(argument: str, value: SupportsIndex, limit: int = 2**31) -> int:
    count = integer(argument, value)
    if count < 0:
        raise ValueError(f"{argument}: {count} is negative")
    if count >= limit:
        raise ValueError(f"{argument}: {count} is not below {limit}")
    return count


def _sizes(buffers: Iterable[SupportsIndex]) -> list[int]:
    if not isinstance(buffers, Iterable) or isinstance(buffers, str):
        raise wrong_type("buffers", "sizes in bytes", buffers)
    sizes = [_count("buffers", size, 2**64) for size in buffers]
    if 0 in sizes:
        raise ValueError("buffers: a size is 0")
    return sizes


def _version(value: SupportsIndex | str) -> int:
    """Return the NCCL_VERSION_CODE of a version: 23203 for 23203 or "2.32.3"."""
    if not isinstance(value, str):
        return _count("version", value)
    found = re.fullmatch(r"(\d+)\.(\d\d?)\.(\d\d?)", value, re.ASCII)
    if not found or int(found[1]) < 2:
        raise ValueError(f"version: {value!r} is not a version of NCCL such as '2.32.3'")
    return int(found[1]) * 10000 + int(found[2]) * 100 + int(found[3])
