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
from typing import Literal

from pynccl import _C
from pynccl._C import (
    Buffer,
    CollConfig,
    Communicator,
    Config,
    Graph,
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
    "Graph",
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
    "capture",
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


def capture(
    stream: object,
    provider: str | os.PathLike[str] | None = None,
    *,
    mode: Literal["global", "thread_local", "relaxed"] = "thread_local",
) -> Graph:
    """Capture what the with block enqueues on a stream, to launch it as one call.

        with nccl.capture(stream) as graph:
            stream.launch(produce)
            comm.all_reduce(x)
            stream.launch(consume)
        graph.launch(stream)

    Nothing runs while it is captured: collectives, sends, receives, groups and plans, functions,
    and the work of others on that stream (kernels, copies) become nodes of a CUDA graph
    (cuStreamBeginCapture), on CPUs of a graph of hostnccl's with the same rules. Other streams join
    the capture by waiting for an event that was recorded in it, and must be joined in the same way
    before the block ends; asynchronous operations whose work was waited for do that by themselves.

    In the capturing thread, ``stream=None`` of a collective means the captured stream, unless the
    current stream of the tensor's framework is captured too. An exception in the block drops the
    graph. All ranks have to launch their graphs in the same order, as with any other operations.

    Args:
        stream: what to capture: a Stream, a torch or CuPy stream, an object with
            ``__cuda_stream__``, or an integer. Not the default streams, of which CPUs have none.
        provider: for a stream that is none of pynccl's, ``"cuda"``, ``"host"`` or None, as for
            :class:`Communicator`.
        mode: which calls of other threads the capture forbids (CUstreamCaptureMode). The default
            concerns this thread only; ``"global"`` is what torch.cuda.graph begins with.

    Raises:
        TypeError: stream is no stream.
        ValueError: mode is none of these.
        DriverError: the capture could not begin, or at the end of the block, broke a rule of
            capturing: its text has the name of CUDA's error.
    """
    library = stream.library if isinstance(stream, _C.Stream) else load(provider)
    return Graph(library, stream, mode)


class Stream(_C.Stream):
    """A queue of work, in order: a CUDA stream, or a queue with a worker thread on CPUs.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
        device: the GPU; None is the thread's current device.
        priority: as CUDA counts it, lower numbers first; 0 is the default. A number that the device
            does not have becomes the nearest one, which the attribute ``priority`` tells. On CPUs
            -1 to -5 are the nice value of the queue's thread, if the kernel allows it to this
            process.
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
