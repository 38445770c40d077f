"""The compared libraries: each gives the call for a row on given buffers.

A call does the whole operation as a user would write it; what can be made beforehand and used again
is made beforehand. Every library is imported only by the ranks that run it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.host_rows import ROOT, Buffers

__all__ = ["LIBRARIES", "Call", "Gloo", "Hostnccl", "Library", "Mpich", "Objects"]

Call = Callable[[], object]


class Library(Protocol):
    """A library that is timed, in one of its ranks.

    Attributes:
        version: as the report names it.
    """

    version: str

    def barrier(self) -> object:
        """Return when all ranks have called it."""

    def call(self, buffers: Buffers) -> Call | None:
        """The call that runs the row once; None where the library has no such operation."""


def _shared_id(rank: int, rendezvous: Path, new_id: Callable[[], bytes]) -> bytes:
    """The id that rank 0 makes, through a file."""
    if rank == 0:
        written = rendezvous.with_suffix(".new")
        written.write_bytes(new_id())
        written.rename(rendezvous)
    while not rendezvous.exists():
        os.sched_yield()
    return rendezvous.read_bytes()


class Hostnccl:
    """hostnccl through pynccl.raw; buffers are addresses."""

    def __init__(self, rank: int, nranks: int, rendezvous: Path) -> None:
        from pynccl import raw

        self._raw = raw
        self._library = raw.load("host")
        unique_id = _shared_id(rank, rendezvous, lambda: bytes(self._library.ncclGetUniqueId()))
        self._comm = self._library.ncclCommInitRank(nranks, unique_id, rank)
        # NCCL has no barrier: a sum of one element, as in torch.distributed.
        self._word = np.zeros(1, np.float32)
        word, all_reduce, comm = self._word.ctypes.data, self._library.ncclAllReduce, self._comm
        self._barrier: Call = lambda: all_reduce(
            word, word, 1, raw.ncclFloat32, raw.ncclSum, comm, 0
        )
        version = self._library.ncclGetVersion()
        self.version = f"NCCL {version // 10000}.{version // 100 % 100} ABI"

    def barrier(self) -> object:
        return self._barrier()

    def call(self, buffers: Buffers) -> Call | None:
        lib, comm, row, rank = self._library, self._comm, buffers.row, buffers.rank
        send, recv = buffers.send.ctypes.data, buffers.recv.ctypes.data
        following, previous = (rank + 1) % row.nranks, (rank - 1) % row.nranks
        n, dtype, op = row.count, getattr(self._raw, _NCCL_DTYPES[row.dtype]), self._raw.ncclSum
        nccl_send, nccl_recv = lib.ncclSend, lib.ncclRecv
        start, end = lib.ncclGroupStart, lib.ncclGroupEnd

        def ring() -> None:
            start()
            nccl_send(send, n, dtype, following, comm, 0)
            nccl_recv(recv, n, dtype, previous, comm, 0)
            end()

        def first() -> None:
            nccl_send(send, n, dtype, 1, comm, 0)
            nccl_recv(recv, n, dtype, 1, comm, 0)

        def second() -> None:
            nccl_recv(recv, n, dtype, 0, comm, 0)
            nccl_send(send, n, dtype, 0, comm, 0)

        calls: dict[str, Call] = {
            "all_reduce": lambda: all_reduce(send, recv, n, dtype, op, comm, 0),
            "all_gather": lambda: all_gather(send, recv, n, dtype, comm, 0),
            "reduce_scatter": lambda: reduce_scatter(send, recv, n, dtype, op, comm, 0),
            "broadcast": lambda: broadcast(recv, recv, n, dtype, ROOT, comm, 0),
            "reduce": lambda: reduce(send, recv, n, dtype, op, ROOT, comm, 0),
            "all_to_all": lambda: all_to_all(send, recv, n, dtype, comm, 0),
            "ping_pong": (first, second, _nothing)[min(rank, 2)],
            "ring": ring,
            "barrier": self._barrier,
        }
        all_reduce, reduce, broadcast = lib.ncclAllReduce, lib.ncclReduce, lib.ncclBroadcast
        all_gather, reduce_scatter = lib.ncclAllGather, lib.ncclReduceScatter
        all_to_all = lib.ncclAlltoAll
        return calls[row.operation]


class Objects:
    """hostnccl through pynccl.nccl; buffers are arrays, which each call reads."""

    def __init__(self, arrays: str, rank: int, nranks: int, rendezvous: Path) -> None:
        from benchmarks.peers import Pynccl
        from pynccl import nccl

        self._arrays = arrays
        unique_id = _shared_id(rank, rendezvous, lambda: bytes(nccl.get_unique_id("host")))
        self._comm = nccl.Communicator(nranks, unique_id, rank, provider="host")
        self._pynccl = Pynccl(self._comm)
        self._word = self._view(np.zeros(4, np.uint8), "float32")
        self.version = importlib.import_module(arrays).__version__

    def barrier(self) -> object:
        self._comm.all_reduce(self._word)
        return None

    def _view(self, memory: np.ndarray, dtype: str) -> Any:  # noqa: ANN401
        if self._arrays == "torch":
            import torch

            return torch.from_numpy(memory).view(getattr(torch, dtype))
        if dtype == "bfloat16":
            return memory.view(importlib.import_module("ml_dtypes").bfloat16)
        return memory.view(dtype)

    def call(self, buffers: Buffers) -> Call | None:
        comm, rank, dtype = self._comm, buffers.rank, buffers.row.dtype
        send, recv = (self._view(part, dtype) for part in (buffers.send, buffers.recv))

        def first() -> None:
            comm.send(send, 1)
            comm.recv(recv, 1)

        def second() -> None:
            comm.recv(recv, 0)
            comm.send(send, 0)

        match buffers.row.operation:
            case "ping_pong":
                return (first, second, _nothing)[min(rank, 2)]
            case "barrier":
                return self.barrier
        return self._pynccl.call(_Operands(buffers, send, recv))


class Mpich:
    """MPICH through mpi4py; buffers are arrays with their count and type."""

    def __init__(self, rank: int, nranks: int, rendezvous: Path) -> None:
        del rank, nranks, rendezvous  # from mpiexec
        from mpi4py import MPI

        self._mpi = MPI
        self._comm: Any = MPI.COMM_WORLD
        self.version = MPI.Get_library_version().split()[2]

    def barrier(self) -> object:
        return self._comm.Barrier()

    def call(self, buffers: Buffers) -> Call | None:
        comm, row, rank = self._comm, buffers.row, buffers.rank
        reduces = row.operation in ("all_reduce", "reduce", "reduce_scatter")
        if row.dtype == "bfloat16" and reduces:
            return None  # mpi4py has no such type
        code = {"float32": "f", "float16": "e", "int8": "b", "bfloat16": "h"}[row.dtype]
        dtype = self._mpi._typedict[code]
        send, recv = ([part, row.count, dtype] for part in (buffers.send, buffers.recv))
        to_root = recv if rank == ROOT else None
        following, previous = (rank + 1) % row.nranks, (rank - 1) % row.nranks

        def first() -> None:
            comm.Send(send, 1)
            comm.Recv(recv, 1)

        def second() -> None:
            comm.Recv(recv, 0)
            comm.Send(send, 0)

        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(send, recv),
            "all_gather": lambda: comm.Allgather(send, recv),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(send, recv),
            "broadcast": lambda: comm.Bcast(recv, ROOT),
            "reduce": lambda: comm.Reduce(send, to_root, root=ROOT),
            "all_to_all": lambda: comm.Alltoall(send, recv),
            "ping_pong": (first, second, _nothing)[min(rank, 2)],
            "ring": lambda: comm.Sendrecv(send, following, 0, recv, previous, 0),
            "barrier": comm.Barrier,
        }
        return calls[row.operation]


class Gloo:
    """gloo through torch.distributed; buffers are tensors."""

    def __init__(self, rank: int, nranks: int, rendezvous: Path) -> None:
        import torch
        import torch.distributed as dist

        from benchmarks.engines import engine
        from benchmarks.peers import Distributed

        torch.set_num_threads(1)  # more would disturb the other ranks
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=rendezvous.as_uri(), rank=rank, world_size=nranks
        )
        self._torch, self._dist = torch, dist
        self._distributed = Distributed("gloo", dist)
        self.version = f"{engine(None, torch.device('cpu'))} of torch {torch.__version__}"

    def barrier(self) -> object:
        return self._dist.barrier()

    def call(self, buffers: Buffers) -> Call | None:
        dist, row = self._dist, buffers.row
        barrier: Call = dist.barrier
        dtype = getattr(self._torch, row.dtype)
        send, recv = (
            self._torch.from_numpy(part).view(dtype) for part in (buffers.send, buffers.recv)
        )

        def first() -> None:
            dist.send(send, 1)
            dist.recv(recv, 1)

        def second() -> None:
            dist.recv(recv, 0)
            dist.send(send, 0)

        match row.operation:
            case "ping_pong":
                return (first, second, _nothing)[min(buffers.rank, 2)]
            case "barrier":
                return barrier
            case "all_reduce" | "reduce":
                recv.copy_(send)  # torch's are in place
        return self._distributed.call(_Operands(buffers, send, recv))


class _Operands:
    """The arrays of a row, as benchmarks.peers takes them."""

    def __init__(self, buffers: Buffers, send: Any, recv: Any) -> None:  # noqa: ANN401
        operation = buffers.row.operation
        self.collective = "send_recv" if operation == "ring" else operation
        self.rank, self.nranks = buffers.rank, buffers.row.nranks
        self.send, self.recv = send, recv


def _nothing() -> None:
    pass


_NCCL_DTYPES = {
    "float32": "ncclFloat32",
    "bfloat16": "ncclBfloat16",
    "float16": "ncclFloat16",
    "int8": "ncclInt8",
}

LIBRARIES: dict[str, Callable[[int, int, Path], Library]] = {
    "hostnccl": Hostnccl,
    "numpy": functools.partial(Objects, "numpy"),
    "torch": functools.partial(Objects, "torch"),
    "mpich": Mpich,
    "gloo": Gloo,
}
