"""The compared libraries: each gives the call for a collective on given buffers.

A call does the whole operation as a user would write it; what can be made beforehand and used again
(lists of chunks, P2POps) is made beforehand. torch is imported by neither of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from benchmarks.host_rows import ROOT
from pynccl import nccl

__all__ = ["Call", "Distributed", "Library", "Operands", "Pynccl", "all_gather_of"]

Call = Callable[[], object]


class Operands(Protocol):
    """What a rank runs a collective on.

    Attributes:
        collective: its name.
        rank, nranks: this rank and how many there are.
        send, recv: the arrays; the same object where the collective works in place.
    """

    collective: str
    rank: int
    nranks: int
    send: Any
    recv: Any


class Library(Protocol):
    """A library that is timed."""

    name: str

    def call(self, operands: Operands) -> Call:
        """The call that runs the collective once."""


class Pynccl:
    """pynccl over its communicator."""

    def __init__(self, comm: nccl.Communicator) -> None:
        self.name = "pynccl"
        self._comm = comm

    def call(self, operands: Operands) -> Call:
        comm, send, recv = self._comm, operands.send, operands.recv
        rank, nranks = operands.rank, operands.nranks
        following, previous = (rank + 1) % nranks, (rank - 1) % nranks
        at_root = rank == ROOT

        def ring() -> None:
            with nccl.group():
                comm.send(send, following)
                comm.recv(recv, previous)

        in_place: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(recv),
            "reduce": lambda: comm.reduce(recv, ROOT),
        }
        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(send, out=recv),
            "broadcast": lambda: comm.broadcast(recv, ROOT),
            "reduce": lambda: comm.reduce(send, ROOT, out=recv),
            "all_gather": lambda: comm.all_gather(send, out=recv),
            "reduce_scatter": lambda: comm.reduce_scatter(send, out=recv),
            "all_to_all": lambda: comm.all_to_all(send, out=recv),
            "gather": lambda: comm.gather(send, ROOT, out=recv if at_root else None),
            "scatter": lambda: comm.scatter(send if at_root else None, ROOT, out=recv),
            "send_recv": ring,
        }
        if send is recv:
            calls |= in_place
        return calls[operands.collective]


class Distributed:
    """The functions of torch.distributed, or of pynccl in its place. Where torch's functions work
    in place, the operands do.

    Args:
        name: of the library.
        module: with the functions.
        group: a process group of torch.distributed with all ranks; None is the default group.
    """

    def __init__(self, name: str, module: Any, group: Any = None) -> None:  # noqa: ANN401 two modules alike
        self.name = name
        self.group = group
        self._module = module
        self._all_gather = all_gather_of(module)
        self._reduce_scatter = _first_of(module, "reduce_scatter_single", "reduce_scatter_tensor")

    def call(self, operands: Operands) -> Call:
        dist, group = self._module, self.group
        send, recv = operands.send, operands.recv
        rank, nranks = operands.rank, operands.nranks
        blocks_to, blocks_from = (
            list(tensor.chunk(nranks)) if rank == ROOT else None for tensor in (recv, send)
        )

        def ring() -> None:
            for work in dist.batch_isend_irecv(messages):
                work.wait()

        messages = []
        if operands.collective == "send_recv":
            messages = [
                dist.P2POp(dist.isend, send, (rank + 1) % nranks, group=group),
                dist.P2POp(dist.irecv, recv, (rank - 1) % nranks, group=group),
            ]
        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(recv, group=group),
            "broadcast": lambda: dist.broadcast(recv, ROOT, group=group),
            "reduce": lambda: dist.reduce(recv, ROOT, group=group),
            "all_gather": lambda: self._all_gather(recv, send, group=group),
            "reduce_scatter": lambda: self._reduce_scatter(recv, send, group=group),
            "all_to_all": lambda: dist.all_to_all_single(recv, send, group=group),
            "gather": lambda: dist.gather(send, blocks_to, ROOT, group=group),
            "scatter": lambda: dist.scatter(recv, blocks_from, ROOT, group=group),
            "send_recv": ring,
        }
        return calls[operands.collective]


def all_gather_of(module: ModuleType) -> Callable[..., Any]:
    """``all_gather(output, input)`` of one tensor each, of torch.distributed or of the mirror."""
    return _first_of(module, "all_gather_single", "all_gather_into_tensor")


def _first_of(module: ModuleType, *names: str) -> Callable[..., Any]:
    # torch 2.13 gave them new names, and warns at every call of the old ones.
    for name in names:
        if function := getattr(module, name, None):
            return function  # type: ignore[no-any-return]
    raise AttributeError(f"{module.__name__} has none of {', '.join(names)}")
