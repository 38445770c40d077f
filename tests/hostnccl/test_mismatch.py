"""Proves that ranks with different calls all get an error and never hang."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def _array(count: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(count, dtype)


# The calls of rank 0, and those of all others instead.
_CALLS: dict[
    str, tuple[Callable[[nccl.Communicator], object], Callable[[nccl.Communicator], object]]
] = {
    "count": (lambda c: c.all_reduce(_array(5)), lambda c: c.all_reduce(_array(6))),
    "large count": (
        lambda c: c.all_reduce(_array(500_000)),
        lambda c: c.all_reduce(_array(500_001)),
    ),
    "small and large count": (
        lambda c: c.all_reduce(_array(3)),
        lambda c: c.all_reduce(_array(500_001)),
    ),
    "dtype": (lambda c: c.all_reduce(_array(5)), lambda c: c.all_reduce(_array(5, "int32"))),
    "op": (lambda c: c.all_reduce(_array(5)), lambda c: c.all_reduce(_array(5), nccl.MAX)),
    "root": (lambda c: c.broadcast(_array(5), 0), lambda c: c.broadcast(_array(5), 1)),
    "large root": (
        lambda c: c.broadcast(_array(500_000), 0),
        lambda c: c.broadcast(_array(500_000), 1),
    ),
    "collective": (lambda c: c.all_reduce(_array(6)), lambda c: c.reduce(_array(6), 0)),
    "large collective": (
        lambda c: c.all_gather(_array(600_000)),
        lambda c: c.reduce_scatter(_array(600_000)),
    ),
    "split": (lambda c: c.all_reduce(_array(6)), lambda c: c.split(0)),
}


def _mismatch(rank: Rank, what: str) -> str:
    comm = rank.comm
    comm.all_reduce(_array(3))
    call = _CALLS[what][min(rank.rank, 1)]
    with pytest.raises((nccl.NcclInvalidUsageError, nccl.NcclRemoteError)) as caught:
        call(comm)
    # The communicator can now only be closed.
    with pytest.raises(nccl.NcclError):
        comm.all_reduce(_array(3))
    assert isinstance(comm.async_error(), nccl.NcclError)
    comm.abort()
    return str(caught.value)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("what", _CALLS)
def test_different_calls(launch: Launcher, what: str, threads: bool) -> None:
    texts = launch(3, _mismatch, what, threads=threads, timeout=20)
    assert any("different calls" in text for text in texts)


def _messages(rank: Rank, count: int, dtype: str) -> str:
    """Rank 0 sends 5 float32, rank 1 expects something else."""
    comm = rank.comm

    def call() -> None:
        if rank.rank == 0:
            comm.send(_array(5 if count < 10_000 else count // 10_000 * 10_000), 1)
            comm.recv(_array(5), 1)  # a small message is sent before its receiver checks it
        else:
            comm.recv(_array(count, dtype), 0)

    with pytest.raises(nccl.NcclError) as caught:
        call()
    comm.abort()
    return str(caught.value)


@pytest.mark.parametrize(
    ("count", "dtype"),
    [(6, "float32"), (4, "float32"), (5, "int32"), (20_001, "float32"), (2_000_001, "float32")],
)
def test_different_messages(launch: Launcher, count: int, dtype: str) -> None:
    texts = launch(2, _messages, count, dtype, timeout=20)
    assert "rank 0 sends" in texts[1]
    assert f"receives {count} x {dtype} [" in texts[1]  # the operation is not added
    if count > 10_000:  # in pieces, and directly: the sender also gets the error
        assert f"receives {count} x {dtype}" in texts[0]


@pytest.mark.parametrize("empty_rank", [0, 1])
@pytest.mark.parametrize("api", ["call", "stream"])
@on_ranks(2, timeout=20)
def test_nothing_against_something(rank: Rank, api: str, empty_rank: int) -> None:
    """An empty call counts: it does not match the next call of the others."""
    comm = rank.comm
    stream = rank.stream() if api == "stream" else None
    array = _array(0 if rank.rank == empty_rank else 5)

    def call() -> None:
        comm.all_reduce(array, stream=stream)
        if stream:
            stream.synchronize()

    with pytest.raises(nccl.NcclInvalidUsageError, match="count=0"):
        call()
    comm.abort()


@on_ranks(2, timeout=20)
def test_a_captured_call_without_elements(rank: Rank) -> None:
    stream = rank.stream()
    with nccl.capture(stream) as graph:
        rank.comm.all_reduce(_array(0))
    graph.launch(stream)
    stream.synchronize()
    graph.close()
