"""NCCL as objects: communicators, groups, streams, on GPUs and on CPUs.

    from pynccl import nccl

    comm = nccl.Communicator(nranks, unique_id, rank)
    comm.all_reduce(tensor)

A tensor argument is any object with a contiguous buffer: torch, CuPy and NumPy arrays, a
:class:`Buffer`, or an integer address with ``count=`` and ``dtype=``. Buffers are never copied.
torch is not required.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from pynccl import _C, memory
from pynccl._C import (
    Buffer,
    Communicator,
    Config,
    DeviceBuffer,
    DeviceComm,
    Graph,
    Plan,
    RedOp,
    Registration,
    Simulation,
    SymmetricBuffer,
    UniqueId,
    Window,
    deadline,
    flight_record,
    group,
    plan,
    simulate,
)
from pynccl._internal import borrowing, creation, device_comm, explanation, recovery
from pynccl._internal.coll_config import CollConfig
from pynccl._internal.device_comm import CommProperties
from pynccl._internal.explanation import Explanation, explain, explain_from_environment
from pynccl._internal.records import FlightRecord, MemoryStats
from pynccl._internal.team import Team
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

if TYPE_CHECKING:
    from pynccl.tools.trace.recorder import Trace, range, trace

__all__ = [
    "AVG",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Buffer",
    "CollConfig",
    "CommProperties",
    "Communicator",
    "Config",
    "DeviceBuffer",
    "DeviceComm",
    "DriverError",
    "Event",
    "Explanation",
    "FlightRecord",
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
    "SymmetricBuffer",
    "Team",
    "Trace",
    "UniqueId",
    "Window",
    "capture",
    "deadline",
    "dump_flight_record",
    "explain",
    "flight_record",
    "get_unique_id",
    "get_version",
    "group",
    "params",
    "plan",
    "range",
    "reset_debug",
    "set_encryption",
    "simulate",
    "trace",
]

# The methods that are written in Python.
Communicator.borrow = staticmethod(borrowing.borrow)
Communicator.device_comm = device_comm.device_comm
Communicator.explain = explanation.explain_collective
Communicator.from_store = staticmethod(creation.from_store)
Communicator.properties = device_comm.properties
Communicator.recover = recovery.recover
Communicator.register_pool = memory.register_pool
DeviceComm.as_argument = device_comm.as_argument

_ENCRYPTION = {"none": 0, "psk": 1}  # ncclEncryptionMode_t
_MIN_KEY_BYTES = 32

SUM = RedOp.SUM
PROD = RedOp.PROD
MAX = RedOp.MAX
MIN = RedOp.MIN
AVG = RedOp.AVG


def get_unique_id(provider: str | os.PathLike[str] | None = None) -> UniqueId:
    """Create the unique id of a new communicator (ncclGetUniqueId).

    One rank creates it and sends it to the others, which must use the same provider.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.

    Returns:
        A UniqueId of 128 bytes.

    Raises:
        ValueError: there is no such provider.
        LibraryNotFoundError: its library was not found.
        NcclError: NCCL failed.
    """
    return _C.get_unique_id(load(provider))


def get_version(provider: str | os.PathLike[str] | None = None) -> tuple[int, int, int]:
    """Return the version of the loaded NCCL (ncclGetVersion).

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.

    Returns:
        (major, minor, patch).

    Raises:
        ValueError: there is no such provider.
        LibraryNotFoundError: its library was not found.
    """
    major, minor, patch = map(int, _C.version_text(load(provider).version).split("."))
    return major, minor, patch


def reset_debug(provider: str | os.PathLike[str] | None = None) -> None:
    """Make NCCL read NCCL_DEBUG and its related variables again (ncclResetDebugInit, NCCL 2.24).

    NCCL has deprecated this function. It has no effect on hostnccl, which has no debug output.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.

    Raises:
        ValueError: there is no such provider.
        LibraryNotFoundError: its library was not found.
        MissingFunctionError: the library is older than NCCL 2.24.
    """
    load(provider).ncclResetDebugInit()


def set_encryption(
    mode: str,
    psk: str | bytes | None = None,
    *,
    provider: str | os.PathLike[str] | None = None,
) -> None:
    """Set the encryption of NCCL's TCP sockets (ncclSetEncryption, NCCL 2.32).

    Call it on every rank with the same key, before creating the first unique id and the first
    communicator. hostnccl sends no data over a network, but creating a communicator fails if ranks
    have different keys or only some have one, so tests catch the mistake.

    Args:
        mode: ``"none"``, or ``"psk"`` for a pre-shared key.
        psk: the key, at least 32 bytes without a zero byte; a str is encoded as UTF-8.
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.

    Raises:
        TypeError, ValueError: an invalid argument; the text never contains the key.
        LibraryNotFoundError: the provider's library was not found.
        MissingFunctionError: the library is older than NCCL 2.32.
        NcclError: NCCL failed.
    """
    if mode not in _ENCRYPTION:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(map(repr, _ENCRYPTION))}")
    if psk is not None and not isinstance(psk, str | bytes):
        raise TypeError(f"psk: expected a str, bytes or None, got {type(psk).__name__}")
    if (mode == "psk") != (psk is not None):
        raise ValueError(f"psk: mode {mode!r} requires {'a key' if mode == 'psk' else 'psk=None'}")
    config = _C.ncclEncryptionConfig_t()
    config.mode = _ENCRYPTION[mode]
    if psk is not None:
        key = psk.encode() if isinstance(psk, str) else psk
        if len(key) < _MIN_KEY_BYTES or b"\0" in key:
            raise ValueError(
                f"psk: has {len(key)} bytes, must have at least {_MIN_KEY_BYTES} and no zero byte"
            )
        config.psk = key
    load(provider).ncclSetEncryption(config)


def capture(
    stream: object,
    provider: str | os.PathLike[str] | None = None,
    *,
    mode: Literal["global", "thread_local", "relaxed"] = "thread_local",
) -> Graph:
    """Capture the work that a with block enqueues on a stream, to launch it with one call.

        with nccl.capture(stream) as graph:
            stream.launch(produce)
            comm.all_reduce(x)
            stream.launch(consume)
        graph.launch(stream)

    Nothing runs during the capture. Collectives, sends, receives, groups, plans, functions, and
    other libraries' work on that stream (kernels, copies) become nodes of a CUDA graph
    (cuStreamBeginCapture) or, on CPUs, of a hostnccl graph with the same rules. Another stream
    joins the capture by waiting for an event recorded in it, and must be joined back in the same
    way before the block ends. For asynchronous operations, ``wait()`` does both; call it in the
    block. On GPUs, NCCL 2.28 needs no join of a stream whose last captured work is a collective; do
    not rely on that.

    In the capturing thread, a collective with ``stream=None`` uses the captured stream, unless the
    current stream of the tensor's framework is being captured as well. An exception in the block
    discards the graph. All ranks must launch their graphs in the same order, as with other
    operations.

    Args:
        stream: the stream to capture: a Stream, a torch or CuPy stream, an object with
            ``__cuda_stream__``, or an integer. Default streams cannot be captured.
        provider: if the stream is not a pynccl Stream: ``"cuda"``, ``"host"`` or None, as for
            :class:`Communicator`.
        mode: which calls invalidate the capture (CUstreamCaptureMode). The default restricts only
            this thread; ``"global"`` is the default of torch.cuda.graph.

    Returns:
        A Graph, a context manager that captures.

    Raises:
        TypeError: stream is not a stream.
        ValueError: mode is not one of these three, or there is no such provider.
        LibraryNotFoundError: the provider's library was not found.
        DriverError: the capture cannot begin or, at the end of the block, was invalidated. The text
            contains the name of CUDA's error.
    """
    library = stream.library if isinstance(stream, _C.Stream) else load(provider)
    return Graph(library, stream, mode)


def dump_flight_record(path: str | os.PathLike[str] | None = None) -> str:
    """Write the flight records of all open communicators of this process to a file.

    If PYNCCL_FLIGHT_FILE is set in the environment, the process also writes them when a
    communicator fails and on SIGUSR2. ``pynccl flight FILES...`` compares the files of all ranks.

    Args:
        path: the file; None is PYNCCL_FLIGHT_FILE followed by the rank of the process (RANK, or
            that of the default process group) or, if it has no rank, by "pid" and its process id.

    Returns:
        The path.

    Raises:
        ValueError: path is None and PYNCCL_FLIGHT_FILE is not set.
        OSError: the file cannot be written.
    """
    name = _C.flight_dump_path() if path is None else os.fspath(path)
    if name is None:
        raise ValueError("path: None requires PYNCCL_FLIGHT_FILE, which is not set")
    _C.write_new_file(name, _C.flight_dump_json("nccl.dump_flight_record()").encode())
    return name


class Stream(_C.Stream):
    """A stream that runs work in order: a CUDA stream or, on CPUs, a queue with a worker thread.

    Created by cuStreamCreateWithPriority, without implicit synchronization with the default stream.

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
        device: the GPU as for :class:`Communicator`; None is the thread's current device.
        priority: CUDA's priority, lower numbers first; 0 is the default. A number outside the
            device's range is clamped; the attribute ``priority`` returns the result. It has no
            effect on CPUs.

    Raises:
        TypeError, ValueError: an invalid argument, or a device of another provider.
        LibraryNotFoundError: the provider's library was not found.
        DriverError: the driver failed.
    """

    def __init__(
        self, provider: str | None = None, *, device: object = None, priority: int = 0
    ) -> None:
        library, ordinal = resolve(provider, device)
        super().__init__(library, ordinal, priority)


class Event(_C.Event):
    """A point in a stream that streams and threads can wait for (cuEventCreate).

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`Communicator`.
        device: the GPU as for :class:`Communicator`; None is the thread's current device.
        timing: whether elapsed_time() is available.

    Raises:
        TypeError, ValueError: an invalid argument, or a device of another provider.
        LibraryNotFoundError: the provider's library was not found.
        DriverError: the driver failed.
    """

    def __init__(
        self, provider: str | None = None, *, device: object = None, timing: bool = False
    ) -> None:
        library, ordinal = resolve(provider, device)
        super().__init__(library, ordinal, timing)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of a module
    if name not in ("Trace", "range", "trace"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pynccl.tools.trace import recorder  # deferred: slow to import

    return getattr(recorder, name)


if any(map(os.environ.get, ("PYNCCL_TRACE", "PYNCCL_RECORD", "PYNCCL_NVTX"))):
    from pynccl.tools.trace.recorder import start_from_environment

    start_from_environment()

explain_from_environment()
