"""Proves that Triton's interpreter runs kernels that communicate: ranks as processes and as
threads, every function, real atomics, waits that end, and no lost stores of peers.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.device.memory import check_rotation_in_a_graph, shared, sizes_and_worlds
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pynccl.device import triton as peers  # noqa: E402

_INTERPRET = {"TRITON_INTERPRET": "1"}
_COUNT = 96

worlds = pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])


@triton.jit
def _ring(pointers, signals, out, rank, nranks, rounds, BLOCK: tl.constexpr, dtype: tl.constexpr):
    """Each rank stores into the next one's memory, in the given number of rounds."""
    offsets = tl.arange(0, BLOCK)
    target = (rank + 1) % nranks
    for step in range(rounds):
        value = tl.zeros((BLOCK,), dtype) + (rank + step)
        peers.put_signal(pointers, signals, target, offsets, value, dtype, 0, offsets < BLOCK - 1)
        peers.wait(signals, rank, step + 1, 0)
        got = peers.load(pointers, rank, offsets, dtype, offsets < BLOCK - 1, 7)
        tl.store(out + step * BLOCK + offsets, got)
        peers.barrier(signals, rank, nranks, 1, 2)


def _ring_of_rank(rank: Rank, dtype: str) -> None:
    kind, rounds, block = getattr(torch, dtype), 3, 16
    memory = shared(rank, block * kind.itemsize, "uint8")
    signals = shared(rank, 2 + peers.barrier_words(rank.nranks, 2))
    out = torch.empty(rounds, block, dtype=kind)
    _ring[(1,)](
        torch.from_numpy(memory.pointers),
        torch.from_numpy(signals.pointers),
        out,
        rank.rank,
        rank.nranks,
        rounds,
        block,
        getattr(tl, dtype),
    )
    source = (rank.rank - 1) % rank.nranks
    expected = torch.tensor([[source + step] * (block - 1) + [7] for step in range(rounds)])
    assert torch.equal(out, expected.to(kind)), out


@sizes_and_worlds
def test_put_signal_wait_and_barrier(launch: Launcher, nranks: int, threads: bool) -> None:
    launch(nranks, _ring_of_rank, "float32", threads=threads, env=_INTERPRET, timeout=60)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int32", "int64"])
def test_types(launch: Launcher, dtype: str) -> None:
    launch(2, _ring_of_rank, dtype, env=_INTERPRET, timeout=60)


@triton.jit
def _count(signals, rank, nranks, times):
    """All ranks add to the same word, with repeated barriers."""
    for _ in range(times):
        peers.signal(signals, 0, 0, 3)
        peers.barrier(signals, rank, nranks, 0, 2)
    peers.signal(signals, rank, 1, 5 + rank, "set")


@sizes_and_worlds
@on_ranks(by="threads", env=_INTERPRET, timeout=60)
def test_signals_are_counted(rank: Rank) -> None:
    signals = shared(rank, 2 + peers.barrier_words(rank.nranks))
    table = torch.from_numpy(signals.pointers)
    for _ in range(2):  # a barrier continues its count
        _count[(1,)](table, rank.rank, rank.nranks, 20)
    rank.comm.all_reduce(np.zeros(1))
    assert signals.own[0] == (2 * 20 * 3 * rank.nranks if rank.rank == 0 else 0)
    assert signals.own[1] == 5 + rank.rank
    assert (signals.own[2:] == 40).all()


@triton.jit
def _grid(signals, rank, nranks, counter, places):
    """The last program of a grid runs the barrier for all."""
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    peers.wait(signals, rank, 0)  # does not wait, but lets other threads run
    tl.store(places + program, program + 1)
    if peers.arrive_last(counter, tl.num_programs(0) * tl.num_programs(1)):
        peers.barrier(signals, rank, nranks)


@worlds
@on_ranks(4, by="threads", env=_INTERPRET, timeout=60)
def test_last_program_of_grids_of_different_sizes(rank: Rank) -> None:
    signals = shared(rank, peers.barrier_words(rank.nranks))
    counter, shape = torch.zeros(1, dtype=torch.int32), (2 + rank.rank, 3)
    for call in range(3):
        places = torch.zeros(shape, dtype=torch.int64)
        table = torch.from_numpy(signals.pointers)
        _grid[shape](table, rank.rank, rank.nranks, counter, places)
        # A barrier counts once per call, although each grid has several programs.
        assert signals.own[-1] == call + 1
        assert counter.item() == 0
        assert torch.equal(places.flatten(), torch.arange(1, places.numel() + 1))


@triton.jit
def _wait_for(signals, rank, value, spins, out):
    tl.store(out, peers.wait(signals, rank, value, 0, spins))


@worlds
@on_ranks(2, by="threads", env=_INTERPRET, timeout=60)
def test_waits_end(rank: Rank) -> None:
    from triton.runtime.errors import InterpreterError

    signals = shared(rank, 1)
    table, out = torch.from_numpy(signals.pointers), torch.zeros(1, dtype=torch.int64)
    signals.own[0] = 4
    _wait_for[(1,)](table, rank.rank, 5, 10, out)
    assert out.item() == 4  # less than the value: the spins were used up
    _wait_for[(1,)](table, rank.rank, 4, 0, out)
    rank.comm.all_reduce(np.zeros(1))
    peers.set_timeout(0.2)
    start = time.monotonic()
    with pytest.raises(InterpreterError, match=r"TimeoutError.*waited for a signal for 0\.2 s"):
        _wait_for[(1,)](table, rank.rank, 5, 0, out)
    assert time.monotonic() - start >= 0.2
    rank.comm.all_reduce(np.zeros(1))
    peers.set_timeout(60)
    assert tl.core.is_builtin(tl.load)  # the interpreter leaves no state behind


@triton.jit
def _rotate(pointers, signals, rank, nranks):
    """Each rank gets the number of the previous one."""
    value = tl.load(peers.peer_pointer(pointers, rank, tl.int64))
    peers.barrier(signals, rank, nranks)
    peers.store(pointers, (rank + 1) % nranks, 0, value, tl.int64)
    peers.barrier(signals, rank, nranks)


@worlds
@on_ranks(4, by="threads", env=_INTERPRET, timeout=60)
def test_in_a_graph_with_a_collective(rank: Rank) -> None:
    memory = shared(rank, 1)
    signals = shared(rank, peers.barrier_words(rank.nranks))
    tables = torch.from_numpy(memory.pointers), torch.from_numpy(signals.pointers)
    check_rotation_in_a_graph(
        rank, memory, 3, lambda: _rotate[(1,)](*tables, rank.rank, rank.nranks)
    )


@triton.jit
def _touch(data):
    tl.store(data, 1)


@on_ranks(1, env=_INTERPRET, timeout=60)
def test_memory_is_not_copied_to_itself(rank: Rank) -> None:
    """Triton's own interpreter copies after a kernel, which loses concurrent stores by peers."""

    def refuse(target: Any, source: Any, *_: object) -> None:
        raise AssertionError(f"copied {source.data_ptr():#x} to {target.data_ptr():#x}")

    memory = torch.zeros(3, dtype=torch.int64)
    copy = torch.UntypedStorage.copy_
    torch.UntypedStorage.copy_ = refuse
    try:
        _touch[(1,)](memory)
        _touch[(1,)](data=memory[1:])
    finally:
        torch.UntypedStorage.copy_ = copy
    assert memory.tolist() == [1, 1, 0]


@triton.jit
def _wrong_operation(signals):
    peers.signal(signals, 0, 0, 1, "subtract")


def _wrong(rank: Rank) -> None:
    from triton.runtime.errors import InterpreterError

    signals = shared(rank, 1)
    with pytest.raises(InterpreterError, match="op is neither"):
        _wrong_operation[(1,)](torch.from_numpy(signals.pointers))
    assert signals.own[0] == 0


def test_arguments(launch: Launcher) -> None:
    launch(1, _wrong, env=_INTERPRET, timeout=60)
    with pytest.raises(ValueError, match="seconds: 0 is not positive"):
        peers.set_timeout(0)
