"""The interface of CuPy 14's cupy.cuda.nccl, implemented over pynccl, on GPUs and on CPUs.

    from pynccl.compat import cupy_nccl as nccl

Buffers are addresses, streams are handles, dtypes and operators are the constants below. The
provider is ``PYNCCL_COMPAT_PROVIDER``: "cuda" (the default), or "host" for CPUs. As in CuPy,
arguments are not checked; :mod:`pynccl.nccl` checks them and accepts arrays. An NcclError has the
attribute ``code`` in place of CuPy's ``status``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from pynccl import raw
from pynccl.errors import NcclError, from_result

__all__ = [
    "NCCL_AVG",
    "NCCL_BFLOAT16",
    "NCCL_CHAR",
    "NCCL_DOUBLE",
    "NCCL_FLOAT",
    "NCCL_FLOAT16",
    "NCCL_FLOAT32",
    "NCCL_FLOAT64",
    "NCCL_HALF",
    "NCCL_INT",
    "NCCL_INT8",
    "NCCL_INT32",
    "NCCL_INT64",
    "NCCL_MAX",
    "NCCL_MIN",
    "NCCL_PROD",
    "NCCL_SUM",
    "NCCL_UINT8",
    "NCCL_UINT32",
    "NCCL_UINT64",
    "NcclCommunicator",
    "NcclConfig",
    "NcclError",
    "available",
    "check_status",
    "get_build_version",
    "get_unique_id",
    "get_version",
    "groupEnd",
    "groupStart",
]

available = True

NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9


@lru_cache
def _library() -> raw.Library:
    return raw.load(os.environ.get("PYNCCL_COMPAT_PROVIDER", "cuda"))


class NcclConfig:
    """The configuration of a communicator.

    Args:
        split_share: 1 if communicators split from it share its resources.
    """

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


def _struct(config: NcclConfig | None) -> raw.ncclConfig_t | None:
    if config is None:
        return None
    struct = raw.ncclConfig_t()
    struct.splitShare = config.split_share
    return struct


class NcclCommunicator:
    """A communicator of one rank (ncclCommInitRank, ncclCommInitRankConfig).

    Every method raises NcclError if NCCL fails. The operations take the addresses of their buffers,
    a number of elements, a dtype such as ``NCCL_FLOAT32``, an operator such as ``NCCL_SUM``, ranks,
    and a cudaStream_t as an integer: on CPUs the handle of a Stream, or 0 for the calling thread.

    Args:
        ndev: the number of ranks.
        commId: the unique id that get_unique_id() returned on one rank.
        rank: this rank.
        config: None is NCCL's default.

    Attributes:
        comm: the ncclComm_t as an integer; 0 after it is destroyed.
    """

    comm: int

    def __init__(
        self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None
    ) -> None:
        self.comm = _library().ncclCommInitRankConfig(ndev, commId, rank, _struct(config))

    @classmethod
    def _of(cls, comm: int) -> NcclCommunicator:
        made = cls.__new__(cls)
        made.comm = comm
        return made

    @staticmethod
    def initAll(devices: int | Sequence[int]) -> list[NcclCommunicator]:
        """Create the communicators of all ranks in one process (ncclCommInitAll).

        Args:
            devices: the number of GPUs, or a sequence of GPUs.

        Returns:
            The communicators, by rank.
        """
        count = devices if isinstance(devices, int) else len(devices)
        chosen = None if isinstance(devices, int) else list(devices)
        return [NcclCommunicator._of(comm) for comm in _library().ncclCommInitAll(count, chosen)]

    def destroy(self) -> None:
        """Destroy the communicator (ncclCommDestroy). Further calls have no effect."""
        if self.comm:
            comm, self.comm = self.comm, 0
            _library().ncclCommDestroy(comm)

    def abort(self) -> None:
        """Abort pending operations and free the communicator (ncclCommAbort)."""
        if self.comm:
            comm, self.comm = self.comm, 0
            _library().ncclCommAbort(comm)

    def check_async_error(self) -> None:
        """Raise the communicator's asynchronous error, if any (ncclCommGetAsyncError)."""
        check_status(_library().ncclCommGetAsyncError(self.comm))

    def device_id(self) -> int:
        """Return the number of the GPU; 0 on CPUs (ncclCommCuDevice)."""
        return _library().ncclCommCuDevice(self.comm)

    def rank_id(self) -> int:
        """Return the rank (ncclCommUserRank)."""
        return _library().ncclCommUserRank(self.comm)

    def size(self) -> int:
        """Return the number of ranks (ncclCommCount)."""
        return _library().ncclCommCount(self.comm)

    def commSplit(
        self, color: int, key: int, config: NcclConfig | None = None
    ) -> NcclCommunicator | None:
        """Split the communicator (ncclCommSplit). Returns None for color -1."""
        comm = _library().ncclCommSplit(self.comm, color, key, _struct(config))
        return NcclCommunicator._of(comm) if comm else None

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce the buffers of all ranks, on every rank (ncclAllReduce)."""
        _library().ncclAllReduce(sendbuf, recvbuf, count, datatype, op, self.comm, stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        """Reduce the buffers of all ranks, on one rank (ncclReduce)."""
        _library().ncclReduce(sendbuf, recvbuf, count, datatype, op, root, self.comm, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        """Copy the buffer of one rank to every rank (ncclBroadcast)."""
        _library().ncclBroadcast(sendbuff, recvbuff, count, datatype, root, self.comm, stream)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Copy the buffer of one rank to every rank, in place (ncclBcast)."""
        _library().ncclBcast(buff, count, datatype, root, self.comm, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce the buffers; rank i gets block i, of recvcount elements (ncclReduceScatter)."""
        _library().ncclReduceScatter(sendbuf, recvbuf, recvcount, datatype, op, self.comm, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        """Concatenate the buffers of all ranks, of count elements each (ncclAllGather)."""
        _library().ncclAllGather(sendbuf, recvbuf, count, datatype, self.comm, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Send a buffer to a rank (ncclSend)."""
        _library().ncclSend(sendbuf, count, datatype, peer, self.comm, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Receive a buffer from a rank (ncclRecv)."""
        _library().ncclRecv(recvbuf, count, datatype, peer, self.comm, stream)


def check_status(status: int) -> None:
    """Raise NcclError unless an ncclResult_t is ncclSuccess."""
    if status != 0:
        text = _library().ncclGetErrorString(status) or f"ncclResult_t {status}"
        raise from_result(text, status, "", -1)


def get_build_version() -> int:
    """Return the version of the nccl.h that pynccl supports, such as 23203 for 2.32.3."""
    return raw.ncclConfig_t().version


def get_version() -> int:
    """Return the version of the library, such as 23203 for 2.32.3 (ncclGetVersion)."""
    return _library().ncclGetVersion()


def get_unique_id() -> bytes:
    """Create a unique id of 128 bytes for a communicator (ncclGetUniqueId)."""
    return bytes(_library().ncclGetUniqueId())


def groupStart() -> None:
    """Start a group (ncclGroupStart)."""
    _library().ncclGroupStart()


def groupEnd() -> None:
    """End the group and issue its operations (ncclGroupEnd)."""
    _library().ncclGroupEnd()
