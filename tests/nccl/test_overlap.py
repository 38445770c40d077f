"""Proves that operations on overlapping memory that NCCL leaves undefined are refused in groups,
plans and simulations, and through the capsule of extensions, before anything is issued; and that
defined ones are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.support.capsule import issue_operations, open_capsule
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_Issue = Callable[[nccl.Communicator], object]


def _undefined(x: np.ndarray, other: int) -> list[tuple[str, _Issue]]:
    """Groups of operations on 24 elements, and the text of their error."""
    a, b, shifted, far = x[:4], x[4:8], x[2:6], x[16:]
    first = "output of all_reduce .operation 2 of 2. overlaps the output of all_reduce .*1 of 2"
    sent, received = "output of recv .* input of send", "output of recv .* output of recv"
    gathered = "output of all_gather .* input of reduce_scatter"
    exchanged = "output of all_reduce .* input of all_to_all"

    def messages(c: nccl.Communicator) -> None:
        c.recv(a, other)
        c.send(b, other)
        c.recv(x[12:], other)
        c.send(x[11:12], 0)
        c.send(x[3:5], other)

    def to_itself(c: nccl.Communicator) -> None:
        """A message to itself that matches another one."""
        c.send(a, c.rank)
        c.send(b, c.rank)
        c.recv(b, c.rank)
        c.recv(a, c.rank)

    return [
        (first, lambda c: (c.all_reduce(a), c.all_reduce(shifted))),
        ("output of broadcast .* all_reduce", lambda c: (c.all_reduce(a), c.broadcast(a, c.rank))),
        (f"{sent} .* any order", lambda c: (c.send(a, other), c.recv(a, other))),
        (sent, messages),
        (received, lambda c: (c.recv(a, other), c.send(b, other), c.recv(x[3:4], other))),
        (gathered, lambda c: (c.all_gather(a, out=far), c.reduce_scatter(x[12:20], out=b))),
        (exchanged, lambda c: (c.all_to_all(a, out=b), c.all_reduce(x[:1]))),
        (sent, to_itself),
    ]


def _defined(x: np.ndarray, other: int) -> list[_Issue]:
    a, b, far = x[:4], x[4:8], x[16:]

    def several_readers(c: nccl.Communicator) -> None:
        c.send(a, other)
        c.recv(b, other)
        c.all_reduce(a, out=x[8:12])
        c.broadcast(a, c.nranks - 1, out=x[12:16])

    def in_place(c: nccl.Communicator) -> None:
        c.all_gather(far.reshape(2, -1)[c.rank], out=far)
        c.reduce_scatter(x[8:16], out=x[8:16].reshape(2, -1)[c.rank])
        c.all_reduce(a, out=a)

    def to_itself(c: nccl.Communicator) -> None:
        c.send(a, c.rank)
        c.send(b, c.rank)
        c.recv(a, c.rank)
        c.recv(b, c.rank)

    def one_root(c: nccl.Communicator) -> None:  # the others write nothing, or read nothing
        for root in range(c.nranks):
            c.reduce(a, root, out=x[8 + 4 * root : 12 + 4 * root])

    def neighbours(c: nccl.Communicator) -> None:
        c.all_reduce(b)
        c.all_reduce(a)
        c.all_reduce(x[4:4])
        c.all_reduce(x[8:9])

    return [several_readers, in_place, to_itself, one_root, neighbours]


@on_ranks(2, threads=True)
def test_groups(rank: Rank) -> None:
    comm, other = rank.comm, 1 - rank.rank
    x = np.arange(24, dtype=np.float32)
    before = x.copy()
    for text, issue in _undefined(x, other):
        plan = nccl.plan()
        for context in (nccl.group(), plan, nccl.simulate()):
            with pytest.raises(ValueError, match=text), context:
                issue(comm)
        with pytest.raises(ValueError, match="an exception ended its recording"):
            plan()
        assert (x == before).all()
    with nccl.plan() as plan:
        comm.all_reduce(x[:4])
    made = []

    def replay(comm: nccl.Communicator) -> None:
        plan()
        comm.all_reduce(x[3:])

    def create(comm: nccl.Communicator) -> None:
        made.append(comm.split(0))
        comm.all_reduce(x[:4])
        comm.all_reduce(x[3:])

    for issue in (replay, create):
        with pytest.raises(ValueError, match="overlaps"), nccl.group():
            issue(comm)
    assert made[0].closed
    assert (x == before).all()
    for issue in _defined(x, other):
        with nccl.group():
            issue(comm)
        with nccl.plan() as plan:
            issue(comm)
        plan()
    comm.barrier()


def test_communicators_of_one_thread_in_a_group(pair: list[nccl.Communicator]) -> None:
    x = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="overlaps"), nccl.group():  # noqa: PT012
        for comm in pair:
            comm.all_reduce(x[:4])
    with nccl.group():
        for comm in pair:
            comm.all_reduce(x[4 * comm.rank : 4 * comm.rank + 4])
    assert (x == 2).all()


@on_ranks(2)
def test_capsule(rank: Rank) -> None:
    comm, me, other = rank.comm, rank.rank, 1 - rank.rank
    capsule = comm.__pynccl_communicator__()
    struct, _ = open_capsule(capsule)
    assert (struct.rank, struct.nranks, struct.device, struct.on_device) == (me, 2, 0, 0)
    x = np.ones(16, np.float32)
    for name, sent, received in (
        ("all_reduce", x[:4], x[1:]),
        ("all_gather", x[2 + 4 * other :], x[2:]),
        ("reduce_scatter", x, x[1:]),
        ("all_to_all", x, x),
        ("all_to_all", x, x[7:]),
    ):
        text = issue_operations(comm, (name, sent, received, 4, 0))
        assert text.startswith(f"the output of {name} overlaps its input"), (name, text)
    text = issue_operations(comm, ("send", x, None, 4, other), ("recv", None, x[3:], 4, other))
    assert text.startswith("the output of recv (operation 2 of 2) overlaps the input of send")
    if me == 0:
        text = issue_operations(comm, ("gather", x[5:], x[1:], 4, 0))
        assert text.startswith("the output of gather overlaps its input")
    assert (x == 1).all()
    assert not issue_operations(comm, ("all_gather", x[4 * me :], x, 4, 0))
    assert not issue_operations(comm, ("reduce_scatter", x, x[4 * me :], 4, 0))
    assert not issue_operations(comm, ("gather", x[4 * me :], x if me == 0 else None, 4, 0))
    buffer = comm.mem_alloc(4096)
    window = comm.register_window(buffer)
    assert not issue_operations(comm, ("signal", None, None, 1, other))
    assert not issue_operations(comm, ("wait_signal", None, None, 1, other))
    text = issue_operations(comm, ("signal", None, None, 1, 2))
    assert text == "root_or_peer: rank 2 is out of range for a communicator of size 2"
    window.close()
    # Buffers that the function does not use on this rank are ignored.
    assert not issue_operations(comm, ("reduce", x[8:], x[8 + me :], 4, 0))
    assert not issue_operations(comm, ("scatter", x if me == 0 else x[1:], x[4 * me :], 4, 0))
    assert not issue_operations(comm, ("all_to_all", x, x, 0, 0))
    comm.barrier()


def test_one_rank(comm: nccl.Communicator) -> None:
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(ValueError, match="no all-to-all in place"):
        comm.all_to_all(x, out=x)
    assert "overlaps its input" in issue_operations(comm, ("all_to_all", x, x, 4, 0))
    for name in ("all_gather", "reduce_scatter"):
        with pytest.raises(ValueError, match="out: overlaps"):
            getattr(comm, name)(x[:3], out=x[1:])
        getattr(comm, name)(x, out=x)
    assert (x == np.arange(4)).all()
