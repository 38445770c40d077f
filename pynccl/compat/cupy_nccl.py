"""The interface of cupy.cuda.nccl of CuPy 14, over pynccl: on GPUs, and on CPUs.

    from pynccl.compat import cupy_nccl as nccl

Buffers are addresses, streams are handles, dtypes and operators are the numbers below. Without a
provider it is that of ``PYNCCL_COMPAT_PROVIDER``, "cuda" by default; "host" are CPUs. Arguments are
not checked, as in CuPy; :mod:`pynccl.nccl` checks them, and takes arrays. An NcclError has ``code``
for CuPy's ``status``.
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
        split_share: 1: communicators that are split from it share its resources.
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
        ndev: how many ranks it has.
        commId: the id that get_unique_id() has returned on one rank.
        rank: of this one.
        config: None is NCCL's default.

    Attributes:
        comm: the ncclComm_t as an integer; 0 once it is destroyed.

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
        """The communicators of all ranks of a process (ncclCommInitAll).

        Args:
            devices: how many, or which GPUs.

        Returns:
            The communicators, by rank.

        Raises:
            NcclError: NCCL failed.
        """
        count = devices if isinstance(devices, int) else len(devices)
        chosen = None if isinstance(devices, int) else list(devices)
        return [NcclCommunicator._of(comm) for comm in _library().ncclCommInitAll(count, chosen)]

    def destroy(self) -> None:
        """Free it (ncclCommDestroy). Destroying twice is allowed."""
        if self.comm:
            comm, self.comm = self.comm, 0
            _library().ncclCommDestroy(comm)

    def abort(self) -> None:
        """Free it and end what is under way (ncclCommAbort)."""
        if self.comm:
            comm, self.comm = self.comm, 0
            _library().ncclCommAbort(comm)

    def check_async_error(self) -> None:
        """Raise the error of the communicator, where it has one (ncclCommGetAsyncError).

        Raises:
            NcclError: it has one.
        """
        check_status(_library().ncclCommGetAsyncError(self.comm))

    def device_id(self) -> int:
        """The device (ncclCommCuDevice).

        Returns:
            The number of the GPU; 0 on CPUs.
        """
        return _library().ncclCommCuDevice(self.comm)

    def rank_id(self) -> int:
        """The rank (ncclCommUserRank).

        Returns:
            The rank, from 0 on.
        """
        return _library().ncclCommUserRank(self.comm)

    def size(self) -> int:
        """How many ranks there are (ncclCommCount).

        Returns:
            The number.
        """
        return _library().ncclCommCount(self.comm)

    def commSplit(
        self, color: int, key: int, config: NcclConfig | None = None
    ) -> NcclCommunicator | None:
        """Split it (ncclCommSplit).

        Args:
            color: ranks with the same one are in a communicator.
            key: by which its ranks are ordered.
            config: None is NCCL's default.

        Returns:
            The new communicator; None with color -1.

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
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
            op: the operator, one of ``NCCL_SUM`` and the others.
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
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
            op: the operator, one of ``NCCL_SUM`` and the others.
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
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
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
            buff: the address of the buffer, which is input on the root and result elsewhere.
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
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
            sendbuf: the address of a block for each rank.
            recvbuf: the address of the result.
            recvcount: how many elements the result has.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
            op: the operator, one of ``NCCL_SUM`` and the others.
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
            count: how many elements each rank has.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
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
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
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
            recvbuf: the address that is received into.
            count: how many elements.
            datatype: the dtype, one of ``NCCL_FLOAT32`` and the others.
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
        NcclError: it is another one.
    """
    if status != 0:
        raise NcclError(_library().ncclGetErrorString(status) or f"ncclResult_t {status}", status)


def get_build_version() -> int:
    """The version of the nccl.h that pynccl was written for.

    Returns:
        A number as 23203, for 2.32.3.
    """
    return raw.ncclConfig_t().version


def get_version() -> int:
    """The version of the library (ncclGetVersion).

    Returns:
        A number as 23203, for 2.32.3.
    """
    return _library().ncclGetVersion()


def get_unique_id() -> bytes:
    """An id for a communicator (ncclGetUniqueId).

    Returns:
        128 bytes.
    """
    return bytes(_library().ncclGetUniqueId())


def groupStart() -> None:
    """Begin a group (ncclGroupStart)."""
    _library().ncclGroupStart()


def groupEnd() -> None:
    """End it, and issue its operations (ncclGroupEnd).

    Raises:
        NcclError: NCCL rejects one of them.
    """
    _library().ncclGroupEnd()
