"""The collectives: which buffers a rank needs, what it fills in, and what must come out.

The values are small integers, exact in every dtype whichever way they are summed, and another sequence on each rank,
so that a block in the wrong place or a rank counted twice shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.launcher import BenchmarkError

__all__ = ["COLLECTIVES", "ROOT", "Buffers", "Shape", "WrongResultError", "check"]

ROOT = 0

_PERIOD = 1009  # a prime: no block of a usual size begins where the values repeat
_MODULUS = 8


@dataclass(frozen=True)
class Shape:
    """The buffers of one rank, in blocks of as many elements.

    Attributes:
        send, recv: blocks of the tensors to send and to receive, 0 being one for each rank.
        in_place: the same tensor is sent and received, as torch.distributed has it.
        rooted: one of the buffers is the root's alone.
    """

    send: int = 1
    recv: int = 1
    in_place: bool = False
    rooted: bool = False


COLLECTIVES: dict[str, Shape] = {
    "all_reduce": Shape(in_place=True),
    "broadcast": Shape(in_place=True),
    "reduce": Shape(in_place=True),
    "all_gather": Shape(recv=0),
    "reduce_scatter": Shape(send=0),
    "all_to_all": Shape(send=0, recv=0),
    "gather": Shape(recv=0, rooted=True),
    "scatter": Shape(send=0, rooted=True),
    "send_recv": Shape(),
}


class WrongResultError(BenchmarkError):
    """A library gave something else than the collective is defined to give."""


class Buffers:
    """One rank's tensors for a collective of a size; both libraries work on them.

    Attributes:
        nbytes: the size of the larger tensor, at least one element for each block.
        send, recv: the tensors; the same where the collective works in place.
    """

    def __init__(
        self,
        collective: str,
        nbytes: int,
        rank: int,
        nranks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.collective = collective
        self.rank = rank
        self.nranks = nranks
        shape = COLLECTIVES[collective]
        blocks = nranks if 0 in (shape.send, shape.recv) else 1
        self.count = max(1, nbytes // (dtype.itemsize * blocks))
        self.nbytes = self.count * blocks * dtype.itemsize
        self.send = torch.zeros(self.count * (shape.send or nranks), dtype=dtype, device=device)
        self.recv = (
            self.send
            if shape.in_place
            else torch.zeros(self.count * (shape.recv or nranks), dtype=dtype, device=device)
        )

    def fill(self) -> None:
        """Fill in what the check expects, and in what is received what must not be left."""
        self.recv.fill_(_MODULUS * self.nranks)
        self.send.copy_(_tile(_values(self.rank), self.send.numel()))

    def clear(self) -> None:
        """Zeros: summed in place as often as wanted, they neither overflow nor slow down."""
        self.send.zero_()
        self.recv.zero_()

    def expected(self) -> torch.Tensor | None:
        """What recv must hold after the operation; None where this rank receives nothing."""
        everyone = [_values(rank) for rank in range(self.nranks)]
        block = slice(self.rank * self.count, (self.rank + 1) * self.count)
        total = self.count * self.nranks
        match self.collective:
            case "all_reduce":
                return _tile(torch.stack(everyone).sum(0), self.count)
            case "broadcast":
                return _tile(everyone[ROOT], self.count)
            case "reduce" if self.rank == ROOT:
                return _tile(torch.stack(everyone).sum(0), self.count)
            case "gather" if self.rank == ROOT:
                return torch.cat([_tile(values, self.count) for values in everyone])
            case "reduce" | "gather":
                return None
            case "all_gather":
                return torch.cat([_tile(values, self.count) for values in everyone])
            case "reduce_scatter":
                return _tile(torch.stack(everyone).sum(0), total)[block]
            case "all_to_all":
                return torch.cat([_tile(values, total)[block] for values in everyone])
            case "scatter":
                return _tile(everyone[ROOT], total)[block]
            case "send_recv":
                return _tile(everyone[self.rank - 1], self.count)
        raise KeyError(self.collective)


def check(buffers: Buffers, library: str) -> None:
    """Compare what was received with what is defined.

    Raises:
        WrongResultError: they differ; says where, on which rank and in which library.
    """
    expected = buffers.expected()
    if expected is None:
        return
    expected = expected.to(buffers.recv)
    if torch.equal(buffers.recv, expected):
        return
    wrong = (buffers.recv != expected).nonzero().flatten()
    first = int(wrong[0])
    raise WrongResultError(
        f"{buffers.collective} of {buffers.nbytes} bytes by {library} is wrong on rank "
        f"{buffers.rank} of {buffers.nranks}: element {first} is {buffers.recv[first].item()}, "
        f"must be {expected[first].item()} ({len(wrong)} of {expected.numel()} elements differ)"
    )


def _values(rank: int) -> torch.Tensor:
    return torch.arange(1, _PERIOD + 1) * (rank + 1) % _PERIOD % _MODULUS


def _tile(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.to(torch.int16).repeat(-(-count // _PERIOD))[:count]
