"""The compared libraries, which return the call of a row on given buffers.

A call is the whole operation as a user would write it. Reusable objects (lists of chunks, P2POps)
are created beforehand. A library is imported only by the ranks that run it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from benchmarks.operations import ROOT, Buffers
from pynccl import nccl
from pynccl.testing import Rank
from pynccl.tools.bench import OPERATIONS, call_of

__all__ = ["HOST", "Call", "Distributed", "Library", "Mpich", "Pynccl"]

Call = Callable[[], object]
# Each has a name for tables, a version for reports, barrier(), and call(), which returns the call
# that runs a row once, or None if it lacks the operation.
Library: TypeAlias = "_Raw | Pynccl | Mpich | Distributed"


class _Raw:
    """hostnccl through pynccl.raw; buffers are addresses."""

    def __init__(self, comm: nccl.Communicator) -> None:
        from pynccl import raw

        self.name = "hostnccl"
        self._raw, self._library, self._comm = raw, comm.library, comm.handle
        # NCCL has no barrier: a sum of one element, as in torch.distributed.
        self._word = np.zeros(1, np.float32)
        word = self._word.ctypes.data
        self._barrier: Call = partial(
            self._library.ncclAllReduce, word, word, 1, raw.ncclFloat32, raw.ncclSum, self._comm, 0
        )
        version = self._library.ncclGetVersion()
        self.version = f"NCCL {version // 10000}.{version // 100 % 100} ABI"

    def barrier(self) -> object:
        return self._barrier()

    def call(self, buffers: Buffers) -> Call | None:
        lib, row, rank = self._library, buffers.row, buffers.rank
        send, recv = buffers.send.ctypes.data, buffers.recv.ctypes.data
        n, dtype = row.count, getattr(self._raw, f"nccl{row.dtype.capitalize()}")
        op, comm, stream = self._raw.ncclSum, self._comm, 0
        send_to = partial(lib.ncclSend, send, n, dtype)
        recv_from = partial(lib.ncclRecv, recv, n, dtype)
        following, previous = (rank + 1) % row.nranks, (rank - 1) % row.nranks

        def ring() -> None:
            start()
            send_to(following, comm, stream)
            recv_from(previous, comm, stream)
            end()

        start, end = lib.ncclGroupStart, lib.ncclGroupEnd
        calls: dict[str, Call] = {
            "all_reduce": partial(lib.ncclAllReduce, send, recv, n, dtype, op, comm, stream),
            "all_gather": partial(lib.ncclAllGather, send, recv, n, dtype, comm, stream),
            "reduce_scatter": partial(
                lib.ncclReduceScatter, send, recv, n, dtype, op, comm, stream
            ),
            "broadcast": partial(lib.ncclBroadcast, recv, recv, n, dtype, ROOT, comm, stream),
            "reduce": partial(lib.ncclReduce, send, recv, n, dtype, op, ROOT, comm, stream),
            "all_to_all": partial(lib.ncclAlltoAll, send, recv, n, dtype, comm, stream),
            "gather": partial(lib.ncclGather, send, recv, n, dtype, ROOT, comm, stream),
            "scatter": partial(lib.ncclScatter, send, recv, n, dtype, ROOT, comm, stream),
            "ping_pong": _ping_pong(
                rank,
                lambda peer: partial(send_to, peer, comm, stream),
                lambda peer: partial(recv_from, peer, comm, stream),
            ),
            "send_recv": ring,
            "barrier": self._barrier,
        }
        return calls[row.operation]


class Pynccl:
    """pynccl's Communicator, with arrays of NumPy or torch, which every call reads."""

    def __init__(self, name: str, comm: nccl.Communicator, arrays: str) -> None:
        self.name = name
        self.version = str(importlib.import_module(arrays).__version__)
        self._comm, self._arrays = comm, arrays
        self._word = np.zeros(1, np.float32)

    def barrier(self) -> None:
        self._comm.all_reduce(self._word)

    def call(self, buffers: Buffers) -> Call | None:
        comm, rank, nranks = self._comm, buffers.rank, buffers.row.nranks
        send, recv = buffers.arrays(self._arrays)
        following, previous = (rank + 1) % nranks, (rank - 1) % nranks
        at_root = rank == ROOT
        out = {} if send is recv else {"out": recv}

        def ring() -> None:
            with nccl.group():
                comm.send(send, following)
                comm.recv(recv, previous)

        calls: dict[str, Call] = {
            "all_reduce": partial(comm.all_reduce, send, **out),
            "all_gather": partial(comm.all_gather, send, out=recv),
            "reduce_scatter": partial(comm.reduce_scatter, send, out=recv),
            "broadcast": partial(comm.broadcast, recv, ROOT),
            "reduce": partial(comm.reduce, send, ROOT, **out),
            "all_to_all": partial(comm.all_to_all, send, out=recv),
            "gather": partial(comm.gather, send, ROOT, out=recv if at_root else None),
            "scatter": partial(comm.scatter, send if at_root else None, ROOT, out=recv),
            "ping_pong": _ping_pong(
                rank,
                lambda peer: partial(comm.send, send, peer),
                lambda peer: partial(comm.recv, recv, peer),
            ),
            "send_recv": ring,
            "barrier": self.barrier,
        }
        return calls[buffers.row.operation]


class Mpich:
    """MPICH through mpi4py; buffers are arrays with their count and type."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.name = "mpich"
        self._mpi = MPI
        self._comm: Any = MPI.COMM_WORLD
        self.rank: int = self._comm.rank
        self.version = MPI.Get_library_version().split()[2]

    def barrier(self) -> object:
        return self._comm.Barrier()

    def call(self, buffers: Buffers) -> Call | None:
        comm, row, rank = self._comm, buffers.row, buffers.rank
        reduces = row.operation in ("all_reduce", "reduce", "reduce_scatter")
        if row.dtype == "bfloat16" and reduces:
            return None  # mpi4py has no such type
        dtype = self._mpi._typedict["h" if row.dtype == "bfloat16" else np.dtype(row.dtype).char]
        send, recv = ([part, row.count, dtype] for part in (buffers.send, buffers.recv))
        following, previous = (rank + 1) % row.nranks, (rank - 1) % row.nranks
        to_root = recv if rank == ROOT else None
        from_root = send if rank == ROOT else None
        ring = partial(comm.Sendrecv, send, following, 0, recv, previous, 0)
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.Allreduce, send, recv),
            "all_gather": partial(comm.Allgather, send, recv),
            "reduce_scatter": partial(comm.Reduce_scatter_block, send, recv),
            "broadcast": partial(comm.Bcast, recv, ROOT),
            "reduce": partial(comm.Reduce, send, to_root, root=ROOT),
            "all_to_all": partial(comm.Alltoall, send, recv),
            "gather": partial(comm.Gather, send, to_root, ROOT),
            "scatter": partial(comm.Scatter, from_root, recv, ROOT),
            "ping_pong": _ping_pong(
                rank,
                lambda peer: partial(comm.Send, send, peer),
                lambda peer: partial(comm.Recv, recv, peer),
            ),
            "send_recv": ring,
            "barrier": comm.Barrier,
        }
        return calls[row.operation]


class Distributed:
    """The functions of torch.distributed, or of pynccl in its place, on buffers in place.

    Args:
        name: the name of the library.
        module: the module with the functions.
        group: a process group of torch.distributed with all ranks; None is the default group.
        version: the version in reports.
    """

    def __init__(self, name: str, module: Any, group: Any = None, version: str = "") -> None:  # noqa: ANN401 two modules alike
        self.name, self.group, self.version = name, group, version
        self._module = module

    def barrier(self) -> object:
        return self._module.barrier(group=self.group)

    def call(self, buffers: Buffers) -> Call | None:
        dist, group = self._module, self.group
        send, recv = buffers.arrays("torch")
        rank, row = buffers.rank, buffers.row
        if row.operation in ("all_reduce", "reduce") and send is not recv:
            recv.copy_(send)
        if row.operation in OPERATIONS:
            return call_of(dist, row.operation, rank, (send, recv), group)
        blocks_to, blocks_from = (
            list(tensor.chunk(row.nranks)) if rank == ROOT else None for tensor in (recv, send)
        )
        calls: dict[str, Call] = {
            "reduce": partial(dist.reduce, recv, ROOT, group=group),
            "gather": partial(dist.gather, send, blocks_to, ROOT, group=group),
            "scatter": partial(dist.scatter, recv, blocks_from, ROOT, group=group),
            "ping_pong": _ping_pong(
                rank,
                lambda peer: partial(dist.send, send, peer, group=group),
                lambda peer: partial(dist.recv, recv, peer, group=group),
            ),
            "barrier": self.barrier,
        }
        return calls[row.operation]


def _ping_pong(rank: int, send: Callable[[int], Call], recv: Callable[[int], Call]) -> Call:
    """Return a call that sends from rank 0 to rank 1 and back, given the calls for a peer."""
    if rank > 1:
        return lambda: None
    first, second = (send(1), recv(1)) if rank == 0 else (recv(0), send(0))

    def call() -> None:
        first()
        second()

    return call


def _gloo(rank: Rank) -> Library:
    import torch
    import torch.distributed as dist

    from benchmarks.engines import engine

    torch.set_num_threads(1)  # more would disturb the other ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    version = f"{engine(None, torch.device('cpu'))} of torch {torch.__version__}"
    return Distributed("gloo", dist, version=version)


# The libraries of benchmarks.host, except MPICH, whose ranks mpiexec starts.
HOST: dict[str, Callable[[Rank], Library]] = {
    "hostnccl": lambda rank: _Raw(rank.comm),
    "numpy": lambda rank: Pynccl("numpy", rank.comm, "numpy"),
    "torch": lambda rank: Pynccl("torch", rank.comm, "torch"),
    "gloo": _gloo,
}
