"""NCCL as objects: communicators, groups, streams, over GPUs and over CPUs.

    from pynccl import nccl

    comm = nccl.Communicator(nranks, unique_id, rank)
    comm.all_reduce(tensor)

Tensors are anything that holds a contiguous buffer: torch, CuPy and NumPy arrays, a
:class:`Buffer`, an integer address with ``count=`` and ``dtype=``. They are used in place, never
copied. torch is not needed.
"""

from __future__ import annotations

import os

from pynccl import _C
from pynccl._C import (
    Buffer,
    CollConfig,
    Communicator,
    Config,
    MemoryStats,
    Plan,
    RedOp,
    Registration,
    Simulation,
    UniqueId,
    Window,
    group,
    plan,
    simulate,
)
from pynccl.encryption import set_encryption
from pynccl.errors import (
    DriverError,
    LibraryNotFoundError,
    MissingFunctionError,
    NcclError,
    NcclInProgressError,
    NcclInternalError,
    NcclInvalidArgumentError,
    NcclInvalidUsageError,
    NcclRemoteError,
    NcclSystemError,
    NcclTimeoutError,
    NcclUnhandledCudaError,
)
from pynccl.libraries import load, resolve
from pynccl.parameters import Param, Params, params

__all__ = [
    "AVG",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Buffer",
    "CollConfig",
    "Communicator",
    "Config",
    "DriverError",
    "Event",
    "LibraryNotFoundError",
    "MemoryStats",
    "MissingFunctionError",
    "NcclError",
    "NcclInProgressError",
    "NcclInternalError",
    "NcclInvalidArgumentError",
    "NcclInvalidUsageError",
    "NcclRemoteError",
    "NcclSystemError",
    "NcclTimeoutError",
    "NcclUnhandledCudaError",
    "Param",
    "Params",
    "Plan",
    "RedOp",
    "Registration",
    "Simulation",
    "Stream",
    "UniqueId",
    "Window",
    "get_unique_id",
    "get_version",
    "group",
    "params",
    "plan",
    "reset_debug",
    "set_encryption",
    "simulate",
]

SUM = RedOp.SUM
PROD = RedOp.PROD
MAX = RedOp.MAX
MIN = RedOp.MIN
AVG = RedOp.AVG


def get_unique_id(provider: str | os.PathLike[str] | None = None) -> UniqueId:
    """Make the id of a new communicator (ncclGetUniqueId).

    One rank makes it and carries it to the others, which must use the same provider.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
    """
    return _C.get_unique_id(load(provider))


def get_version(provider: str | os.PathLike[str] | None = None) -> tuple[int, int, int]:
    """The version of the loaded NCCL as (major, minor, patch) (ncclGetVersion)."""
    major, minor, patch = map(int, _C.version_text(load(provider).version).split("."))
    return major, minor, patch


def reset_debug(provider: str | os.PathLike[str] | None = None) -> None:
    """Let NCCL read NCCL_DEBUG and what belongs to it again (ncclResetDebugInit, NCCL 2.24).

    NCCL means to drop this function. hostnccl prints nothing and so has nothing to read.
    """
    load(provider).ncclResetDebugInit()


class Stream(_C.Stream):
    """A queue of work, in order: a CUDA stream, or a queue with a worker thread on CPUs.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
        device: the GPU; None is the thread's current device.
        priority: as CUDA counts it, lower numbers first; 0 is the default.
    """

    def __init__(
        self, provider: str | None = None, *, device: object = None, priority: int = 0
    ) -> None:
        library, ordinal = resolve(provider, device)
        super().__init__(library, ordinal, priority)


class Event(_C.Event):
    """A point in a stream that streams and the caller can wait for.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
        device: the GPU; None is the thread's current device.
        timing: whether elapsed_time() can be asked.
    """

    def __init__(
        self, provider: str | None = None, *, device: object = None, timing: bool = False
    ) -> None:
        library, ordinal = resolve(provider, device)
        super().__init__(library, ordinal, timing)
