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
from pynccl.errors import NcclError

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

    def _as_struct(self) -> raw.ncclConfig_t:
        config = raw.ncclConfig_t()
        config.splitShare = self.split_share
        return config


def _struct(config: NcclConfig | None) -> raw.ncclConfig_t | None:
    return None if config is None else config._as_struct()


class NcclCommunicator:
    """A communicator of one rank (ncclCommInitRank, ncclCommInitRankConfig).

    Args:
        ndev: the number of ranks.
        commId: the unique id that get_unique_id() returned on one rank.
        rank: this rank.
        config: None is NCCL's default.

    Attributes:
        comm: the ncclComm_t as an integer; 0 after it is destroyed.

    Raises:
        NcclError: NCCL failed.
    """

    comm: int

    def __init__(
        self,
        ndev: int,
        commId: bytes,
        rank: int,
        config: NcclConfig | None = None,
    ) -> None:
        library, settings = _library(), _struct(config)
        if settings is None:
            self.comm = library.ncclCommInitRank(ndev, commId, rank)
        else:
            self.comm = library.ncclCommInitRankConfig(ndev, commId, rank, settings)

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

        Raises:
            NcclError: NCCL failed.
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
        """Raise the communicator's asynchronous error, if any (ncclCommGetAsyncError).

        Raises:
            NcclError: the communicator has an error.
        """
        check_status(_library().ncclCommGetAsyncError(self.comm))

    def device_id(self) -> int:
        """Return the device (ncclCommCuDevice).

        Returns:
            The number of the GPU; 0 on CPUs.
        """
        return _library().ncclCommCuDevice(self.comm)

    def rank_id(self) -> int:
        """Return the rank (ncclCommUserRank).

        Returns:
            The rank, starting at 0.
        """
        return _library().ncclCommUserRank(self.comm)

    def size(self) -> int:
        """Return the number of ranks (ncclCommCount).

        Returns:
            The number of ranks.
        """
        return _library().ncclCommCount(self.comm)

    def commSplit(
        self, color: int, key: int, config: NcclConfig | None = None
    ) -> NcclCommunicator | None:
        """Split the communicator (ncclCommSplit).

        Args:
            color: ranks with the same color form a communicator.
            key: determines the order of its ranks.
            config: None is NCCL's default.

        Returns:
            The new communicator, or None for color -1.

        Raises:
            NcclError: NCCL failed.
        """
        comm = _library().ncclCommSplit(self.comm, color, key, _struct(config))
        return NcclCommunicator._of(comm) if comm else None

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce the buffers of all ranks, on every rank (ncclAllReduce).

        Args:
            sendbuf: the address of this rank's input.
            recvbuf: the address of the result.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            op: the operator, such as ``NCCL_SUM``.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclAllReduce(sendbuf, recvbuf, count, datatype, op, self.comm, stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        """Reduce the buffers of all ranks, on one rank (ncclReduce).

        Args:
            sendbuf: the address of this rank's input.
            recvbuf: the address of the result; used on the root.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            op: the operator, such as ``NCCL_SUM``.
            root: the rank that gets the result.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclReduce(sendbuf, recvbuf, count, datatype, op, root, self.comm, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        """Copy the buffer of one rank to every rank (ncclBroadcast).

        Args:
            sendbuff: the address of the input; used on the root.
            recvbuff: the address of the result.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            root: the rank that sends.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclBroadcast(sendbuff, recvbuff, count, datatype, root, self.comm, stream)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Copy the buffer of one rank to every rank, in place (ncclBcast).

        Args:
            buff: the address of the buffer, the input on the root and the result elsewhere.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            root: the rank that sends.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclBcast(buff, count, datatype, root, self.comm, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce the buffers of all ranks; rank i gets block i (ncclReduceScatter).

        Args:
            sendbuf: the address of one block per rank.
            recvbuf: the address of the result.
            recvcount: the number of elements of the result.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            op: the operator, such as ``NCCL_SUM``.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclReduceScatter(sendbuf, recvbuf, recvcount, datatype, op, self.comm, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        """Concatenate the buffers of all ranks, on every rank (ncclAllGather).

        Args:
            sendbuf: the address of this rank's input.
            recvbuf: the address of the result, with room for the buffers of all ranks.
            count: the number of elements per rank.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclAllGather(sendbuf, recvbuf, count, datatype, self.comm, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Send a buffer to a rank (ncclSend).

        Args:
            sendbuf: the address of this rank's input.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            peer: the rank that receives.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclSend(sendbuf, count, datatype, peer, self.comm, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Receive a buffer from a rank (ncclRecv).

        Args:
            recvbuf: the address to receive into.
            count: the number of elements.
            datatype: the dtype, such as ``NCCL_FLOAT32``.
            peer: the rank that sends.
            stream: the cudaStream_t as an integer; on CPUs the handle of a Stream, or 0 for the
                calling thread.

        Raises:
            NcclError: NCCL failed.
        """
        _library().ncclRecv(recvbuf, count, datatype, peer, self.comm, stream)


def check_status(status: int) -> None:
    """Raise NcclError unless an ncclResult_t is ncclSuccess.

    Args:
        status: the result.

    Raises:
        NcclError: it is another value.
    """
    if status != 0:
        raise NcclError(_library().ncclGetErrorString(status) or f"ncclResult_t {status}", status)


def get_build_version() -> int:
    """Return the version of the nccl.h that pynccl supports.

    Returns:
        A number such as 23203, for 2.32.3.
    """
    return raw.ncclConfig_t().version


def get_version() -> int:
    """Return the version of the library (ncclGetVersion).

    Returns:
        A number such as 23203, for 2.32.3.
    """
    return _library().ncclGetVersion()


def get_unique_id() -> bytes:
    """Create a unique id for a communicator (ncclGetUniqueId).

    Returns:
        128 bytes.
    """
    return bytes(_library().ncclGetUniqueId())


def groupStart() -> None:
    """Start a group (ncclGroupStart)."""
    _library().ncclGroupStart()


def groupEnd() -> None:
    """End the group and issue its operations (ncclGroupEnd).

    Raises:
        NcclError: NCCL rejects one of the operations.
    """
    _library().ncclGroupEnd()
