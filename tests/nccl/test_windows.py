"""Proves that windows are registered on all ranks or on none, in processes, threads and groups;
that collectives give the same bits in windows and in other memory; and that wrong arguments leave
the communicator usable. tests/hostnccl/test_interactions.py tests for leaks.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu, holdings
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_PAGE = 4096


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (3, False)])
@on_ranks(by="provider threads")
def test_lifecycle(rank: Rank) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc((4, _PAGE))
    with comm.register_window(buffer) as window:
        assert (window.address, window.nbytes) == (buffer.ptr, 4 * _PAGE)
        assert window.user_pointer() == buffer.ptr
        assert window.handle > 0
        assert not window.closed
        assert repr(window) == f"<pynccl.nccl.Window of {4 * _PAGE} bytes>"
    window.close()
    assert window.closed
    assert repr(window) == "<pynccl.nccl.Window closed>"
    for use in (lambda: window.handle, window.user_pointer):
        with pytest.raises(ValueError, match="window: it is closed"):
            use()
    # Sizes may differ, a window may be a part of an allocation, and several may be open.
    bytes_of_rank = (rank.rank + 1) * 2048
    part = comm.register_window(
        buffer.ptr + _PAGE, symmetric=False, count=bytes_of_rank, dtype="uint8"
    )
    whole = comm.register_window(buffer, strict_ordering=True)
    assert (part.nbytes, whole.nbytes) == (bytes_of_rank, 4 * _PAGE)
    with pytest.raises(ValueError, match="begins at the same address"):
        comm.register_window(buffer)
    whole.close()
    part.close()
    comm.register_window(buffer).close()
    with comm.split(0) as child:
        left_open = child.register_window(buffer)
    assert left_open.closed
    left_open.close()


@on_ranks(2, by="provider")
def test_ranks_must_have_the_same_windows(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommWindowRegister")
    comm = rank.comm
    buffers = [comm.mem_alloc(2 * _PAGE) for _ in range(3)]
    first, second = comm.register_window(buffers[0]), comm.register_window(buffers[1])
    (first if rank.rank == 0 else second).close()
    with pytest.raises(ValueError, match="rank 0 and rank 1 have different windows open"):
        comm.register_window(buffers[2])
    (second if rank.rank == 0 else first).close()
    start = buffers[2].ptr + rank.rank * _PAGE
    with pytest.raises(ValueError, match=r"begins 0 bytes .* on rank 0, and 4096 bytes on rank 1"):
        comm.register_window(start, count=_PAGE, dtype="uint8")
    comm.register_window(buffers[2]).close()


@pytest.mark.gpu
@on_ranks(1, provider="cuda")
def test_host_memory_is_refused_for_a_gpu(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommWindowRegister")
    with pytest.raises(ValueError, match="buffer: is on cpu"):
        rank.comm.register_window(np.zeros(2 * _PAGE, np.uint8))


def test_a_deleted_window_stays_registered(comm: nccl.Communicator) -> None:
    """Until its communicator is closed: the ranks would close their windows in different orders."""
    buffer = comm.mem_alloc(_PAGE)
    released = weakref.ref(buffer)
    with pytest.warns(ResourceWarning, match="Window was not closed"):
        comm.register_window(buffer)
    with pytest.raises(ValueError, match="begins at the same address"):
        comm.register_window(buffer)
    del buffer
    gc.collect()
    assert released() is not None
    comm.close()
    assert released() is None


def test_the_warning_of_a_deleted_window_as_an_error(
    comm: nccl.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destructor cannot raise it."""
    reports: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    buffer = comm.mem_alloc(_PAGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comm.register_window(buffer)
    assert [type(report) for report in reports] == [ResourceWarning]


def test_several_ranks_in_one_thread() -> None:
    comms = nccl.Communicator.init_all(3, provider="host")
    buffers = [comm.mem_alloc(_PAGE) for comm in comms]
    with nccl.group():
        windows = [comm.register_window(b) for comm, b in zip(comms, buffers, strict=True)]
        with pytest.raises(ValueError, match="still being registered; leave the group first"):
            _ = windows[0].handle
        with pytest.raises(ValueError, match="still being registered"):
            windows[0].close()
    assert all(window.handle for window in windows)
    other = comms[0].mem_alloc(_PAGE)
    for _ in range(2):
        with contextlib.suppress(KeyError), nccl.group():
            window = comms[0].register_window(other)
            raise KeyError
        assert window.closed
    with nccl.plan() as plan, pytest.raises(RuntimeError, match="plan: a window"):
        comms[0].register_window(other)
    assert len(plan) == 0
    for comm in comms:
        comm.close()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(2, by="threads", ids=2)
def test_mistakes_are_refused_on_all_ranks(rank: Rank) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc(2 * _PAGE)
    closed = rank.communicator(1)
    closed.close()
    unaligned = {"buffer": buffer.ptr + 8, "count": 8, "dtype": "uint8"}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("buffer: .*None", {"buffer": None}),
        ("buffer: has no elements", {"buffer": comm.mem_alloc(0)}),
        ("buffer: the address must be a multiple of 4096", unaligned),
        (
            "symmetric: it cannot be combined",
            {"buffer": buffer, "symmetric": True, "gin_only": True},
        ),
    ]
    for message, arguments in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            comm.register_window(**arguments)
    for context in (contextlib.nullcontext(), nccl.group()):
        with context, pytest.raises(ValueError, match="communicator: it is closed"):
            closed.register_window(buffer)
    # One rank's mistake is raised on all of them, and their communicator stays usable.
    ordinary = np.zeros(3 * _PAGE, np.uint8)
    aligned = ordinary[-ordinary.ctypes.data % _PAGE :][:_PAGE]
    wrong_on_one: list[tuple[str, dict[str, Any]]] = [
        ("is not memory that NCCL can share", {"buffer": aligned}),
        ("has no elements", {"buffer": comm.mem_alloc(0)}),
        ("must be a multiple of 4096", unaligned),
    ]
    for text, arguments in wrong_on_one:
        with pytest.raises(ValueError, match=text) as caught:
            comm.register_window(**arguments if rank.rank == 1 else {"buffer": buffer})
        assert (rank.rank == 1) == ("of rank 1: " not in str(caught.value))
    text = "is not within one allocation of ncclMemAlloc"
    with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
        comm.register_window(aligned)
    with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
        comm.register_window(buffer.ptr, count=3 * _PAGE, dtype="uint8")
    comm.register_window(buffer, gin_only=True).close()
    total = np.ones(1)
    comm.all_reduce(total)
    assert total[0] == rank.nranks


class _Data:
    """The same values in a window and in ordinary memory."""

    def __init__(self, comm: nccl.Communicator, count: int, seed: int) -> None:
        self.buffer = comm.mem_alloc(count, "float32")
        self.window = comm.register_window(self.buffer)
        self.inside = np.from_dlpack(self.buffer)
        self.outside = np.zeros(count, np.float32)
        self.values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)

    def fill(self) -> None:
        self.inside[:] = self.outside[:] = self.values


_WINDOW_BYTES = {"HOSTNCCL_WINDOW_BYTES": "50000"}


@pytest.mark.parametrize(
    ("nranks", "threads", "env"),
    [
        (2, False, {**_WINDOW_BYTES, "HOSTNCCL_CMA": "0"}),
        (3, False, _WINDOW_BYTES),
        (3, False, {**_WINDOW_BYTES, "HOSTNCCL_DIRECT_BYTES": "100000"}),
        (3, True, {}),
    ],
    ids=str,
)
@on_ranks(by="threads env")
def test_collectives_give_the_same_bits(rank: Rank) -> None:
    """Each collective runs once outside of windows, then with some of the ranks inside of them."""
    comm, nranks = rank.comm, rank.nranks
    block = 61_003
    own, other = (_Data(comm, block * nranks, seed) for seed in (rank.rank, 1000 + rank.rank))
    choose = np.random.default_rng(7)  # the same on all ranks
    calls: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
        "all_reduce": lambda a, b: comm.all_reduce(a, out=b),
        "all_reduce in place": lambda a, _: comm.all_reduce(a),
        "broadcast": lambda a, b: comm.broadcast(a, nranks - 1, out=b),
        "reduce": lambda a, b: comm.reduce(a, nranks - 1, nccl.MAX, out=b),
        "all_gather": lambda a, b: comm.all_gather(a[:block], out=b),
        "reduce_scatter": lambda a, b: comm.reduce_scatter(a, nccl.AVG, out=b[:block]),
        "all_to_all": lambda a, b: comm.all_to_all(a, out=b),
    }
    for turn in range(4):
        for name, call in calls.items():
            places = choose.integers(0, 3, nranks)  # 0: in windows, 1: not, 2: the result is not
            if turn % 2 == 0:
                places[:] = 0
            own.fill()
            other.fill()
            call(own.outside, other.outside)
            wanted = own.outside.copy(), other.outside.copy()
            own.fill()
            other.fill()
            source = own.outside if places[rank.rank] == 1 else own.inside
            target = other.inside if places[rank.rank] == 0 else other.outside
            call(source, target)
            assert np.array_equal(source, wanted[0]), (name, places)
            assert np.array_equal(target, wanted[1]), (name, places)


@pytest.mark.parametrize("env", [{}, {"HOSTNCCL_CMA": "0"}], ids=str)
@on_ranks(3, by="env")
def test_a_window_closed_by_some_ranks(rank: Rank) -> None:
    """The data takes another path."""
    data = _Data(rank.comm, 500_000, rank.rank)
    for open_ranks in (3, 2, 1, 0):
        if rank.rank == open_ranks:
            data.window.close()
        data.fill()
        rank.comm.all_reduce(data.outside)
        rank.comm.all_reduce(data.inside)
        assert np.array_equal(data.inside, data.outside)


def _staged() -> int:
    """The touched part of the memory that the ranks share for staging."""
    return holdings.resident_in("memfd:hostnccl ")


@on_ranks(2, env={"HOSTNCCL_CMA": "0"})
def test_large_data_in_windows_is_not_staged(rank: Rank) -> None:
    """Ranks cannot read other processes, so only the windows' mappings are left."""
    data = _Data(rank.comm, 1_000_000, rank.rank)
    before = _staged()
    data.fill()
    rank.comm.all_reduce(data.inside)
    rank.comm.broadcast(data.inside, 1)
    assert _staged() - before < 50_000
    rank.comm.all_reduce(data.outside)
    assert _staged() - before > 500_000


@on_ranks(2, by="provider", ids=2, fresh=True)
def test_a_failed_group_leaves_no_window(rank: Rank) -> None:
    """The operations of a group are dropped if its communicators cannot be created."""
    gpu.require(rank.provider, "ncclCommWindowRegister")
    comm = rank.comm
    buffer = comm.mem_alloc(4096)
    if rank.rank == 0:
        with pytest.raises(nccl.NcclTimeoutError), nccl.group():  # noqa: PT012
            comm.register_window(buffer)
            rank.communicator(1, config=nccl.Config(init_timeout=0.3))
        with nccl.group():
            pass
    comm.register_window(buffer).close()
