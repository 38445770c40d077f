"""The collectives: which buffers a rank needs, what it fills in, and what must come out.

The values are small integers, exact in every dtype whichever way they are summed (bfloat16: up to
36 ranks), and another sequence on each rank, so that a block in the wrong place or a rank counted
twice shows.
"""

from __future__ import annotations

import torch

from benchmarks.host_rows import MODULUS, Shape, expected, sent
from benchmarks.ranks import BenchmarkError

__all__ = ["COLLECTIVES", "Buffers", "WrongResultError", "check", "exact_size"]


COLLECTIVES: dict[str, Shape] = {
    "all_reduce": Shape(in_place=True),
    "broadcast": Shape(in_place=True),
    "reduce": Shape(in_place=True),
    "all_gather": Shape(recv=0),
    "reduce_scatter": Shape(send=0),
    "all_to_all": Shape(send=0, recv=0),
    "gather": Shape(recv=0),
    "scatter": Shape(send=0),
    "send_recv": Shape(),
}


class WrongResultError(BenchmarkError):
    """A library gave something else than the collective is defined to give."""


def exact_size(collective: str, nbytes: int, nranks: int, itemsize: int) -> int:
    """The size nearest below nbytes that has whole blocks, or that of one element in each."""
    shape = COLLECTIVES[collective]
    return shape.count(nbytes, nranks, itemsize) * shape.blocks(nranks) * itemsize


class Buffers:
    """One rank's tensors for a collective of a size; both libraries work on them.

    Attributes:
        nbytes: the size of the larger tensor, as exact_size() gives it.
        send, recv: the tensors; the same where the collective works in place.
    """

    def __init__(
        self,
        collective: str,
        nbytes: int,
        rank: int,
        nranks: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.collective = collective
        self.nbytes = nbytes
        self.rank = rank
        self.nranks = nranks
        shape = COLLECTIVES[collective]
        self._count = shape.count(nbytes, nranks, dtype.itemsize)
        sent, received = (self._count * (blocks or nranks) for blocks in (shape.send, shape.recv))
        self.send = torch.zeros(sent, dtype=dtype, device=device)
        self.recv = (
            self.send if shape.in_place else torch.zeros(received, dtype=dtype, device=device)
        )

    def fill(self) -> None:
        """Fill in what the check expects, and in what is received what must not be left."""
        self.recv.fill_(MODULUS * self.nranks)
        self.send.copy_(torch.from_numpy(sent(self.rank, self.send.numel())))

    def clear(self) -> None:
        """Zeros: summed in place as often as wanted, they neither overflow nor slow down."""
        self.send.zero_()
        self.recv.zero_()

    def expected(self) -> torch.Tensor | None:
        """The expected contents of recv; None where this rank receives nothing."""
        values = expected(self.collective, self.rank, self.nranks, self._count)
        return None if values is None else torch.from_numpy(values)


def check(buffers: Buffers, library: str) -> None:
    """Compare what was received with what is defined.

    Raises:
        WrongResultError: they differ; says where, on which rank and in which library.
    """
    values = buffers.expected()
    if values is None:
        return
    values = values.to(buffers.recv)
    if torch.equal(buffers.recv, values):
        return
    wrong = (buffers.recv != values).nonzero().flatten()
    first = int(wrong[0])
    raise WrongResultError(
        f"{buffers.collective} of {buffers.nbytes} bytes by {library} is wrong on rank "
        f"{buffers.rank} of {buffers.nranks}: element {first} is {buffers.recv[first].item()}, "
        f"must be {values[first].item()} ({len(wrong)} of {values.numel()} elements differ)"
    )
