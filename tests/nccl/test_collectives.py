"""Proves that every collective gives NumPy's result: every dtype and operator, small to large, in
place and out of place, on the calling thread and on a stream, in worlds of 1 to 16 ranks; and that
the results have the same bits on all ranks, in every run.
"""

from __future__ import annotations

import ctypes
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support import collectives, dtypes, gpu
from tests.support.collectives import Case, Runner
from tests.support.launcher import Launcher
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.tier import FULL

_COUNTS = (0, 1, 7, 1009)  # none, one, odd, prime
_LONG = 20011  # above 16 KiB with every dtype, beyond hostnccl's copies through shared memory
_LARGE = 600_011  # bytes, above every internal chunk
_HUGE = 8_000_003
_LEAST_LARGE = len(dtypes.ALL) - 2  # not every NCCL and GPU has the two 8-bit floats

# Every case of a reduction in each world size, or a different fifth in each.
_STEP = 1 if FULL else 5
# When hostnccl reads other processes' memory.
_READING = {
    "never": {"HOSTNCCL_CMA": "0"},
    "never, past the caches": {"HOSTNCCL_CMA": "0", "HOSTNCCL_STREAM_BYTES": "0"},
    "from 16 KiB": {"HOSTNCCL_DIRECT_BYTES": "16384"},
}


def _pairs(*values: object) -> list[tuple[str, object]]:
    """Each collective with one of the values in turn, all_reduce with every one."""
    return [
        (collective, value)
        for number, collective in enumerate(collectives.ALL)
        for index, value in enumerate(values)
        if FULL or collective == "all_reduce" or index == number % len(values)
    ]


def _run_small(rank: Rank, collective: str) -> int:
    runner = Runner(rank)
    small = collectives.product(collective, rank.nranks, dtypes.ALL, _COUNTS)
    if collective in collectives.REDUCING:
        small = collectives.thin(small, _STEP, rank.nranks)
    done = runner.run_all(collectives.few(small, rank))
    long = collectives.product(collective, rank.nranks, dtypes.ALL, (_LONG,))
    return done + runner.run_all(collectives.few(collectives.thin(long, 5 * _STEP), rank))


def _large_cases(collective: str, nranks: int) -> Iterator[Case]:
    """Each dtype once, float32 with every operator, and float32 once more in the largest size."""
    blocks = nranks if collective in collectives.SENDS_ALL else 1
    number = 0
    for index, name in enumerate(dtypes.ALL):
        count = _LARGE // dtypes.numpy_dtype(name).itemsize // blocks
        ops = dtypes.operators(name) if collective in collectives.REDUCING else ("",)
        for op in ops if name == "float32" else ops[index % len(ops) :][:1]:
            number += 1
            in_place = collective != "all_to_all" and number % 2 == 0
            yield Case(collective, name, count, op, in_place, number % 3 == 0, number % nranks)
    yield Case(collective, "float32", _HUGE // 4 // blocks, "SUM", root=nranks - 1)


def _run_large(rank: Rank, collective: str) -> int:
    return Runner(rank).run_all(collectives.few(_large_cases(collective, rank.nranks), rank))


def _run_oversubscribed(rank: Rank, collective: str) -> int:
    """With more ranks than cores: all dtypes, and few combinations of the rest."""
    runner = Runner(rank)
    small = collectives.product(collective, rank.nranks, dtypes.ALL, (1, 331))
    small = collectives.thin(small, 11 * _STEP if collective in collectives.REDUCING else 3)
    done = runner.run_all(collectives.few(small, rank))
    float32 = collectives.product(collective, rank.nranks, ("float32",), (0, 7))
    done += runner.run_all(collectives.few(collectives.thin(float32, 3), rank))
    large = collectives.product(collective, rank.nranks, ("float32", "int8"), (40_009,))
    return done + runner.run_all(collectives.few(collectives.thin(large, 13), rank))


def _run_core(rank: Rank, collective: str) -> int:
    """A few of everything."""
    runner = Runner(rank)
    names = ("float32", "bfloat16", "int8", "float8_e4m3fn", "int64")
    cases = collectives.product(collective, rank.nranks, names, (0, 1, 1009, 50_021))
    step = 11 if collective in collectives.REDUCING and not FULL else 3
    done = runner.run_all(collectives.few(collectives.thin(cases, step), rank))
    blocks = rank.nranks if collective in collectives.SENDS_ALL else 1
    huge = Case(collective, "float64", _HUGE // 8 // blocks, "SUM", root=rank.nranks - 1)
    return done + runner.run_all(iter([huge]))


@pytest.mark.parametrize(
    ("collective", "nranks"), [*((name, 1) for name in collectives.ALL), *_pairs(4, 3, 2)]
)
def test_small(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    gpu.spare(provider, nranks)
    counts = launch(nranks, _run_small, collective, provider=provider, timeout=120)
    assert min(counts) > (gpu.most_cases(provider, nranks) or 200) // 2


@pytest.mark.parametrize(("collective", "nranks"), _pairs(4, 3, 2))
def test_large(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    gpu.spare(provider, nranks)
    counts = launch(nranks, _run_large, collective, provider=provider, timeout=120)
    assert min(counts) > min(_LEAST_LARGE, (gpu.most_cases(provider, nranks) or 200) // 2)


@pytest.mark.parametrize("nranks", [8, 16] if FULL else [8])
@pytest.mark.parametrize("collective", collectives.ALL)
def test_many_ranks(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    gpu.spare(provider, nranks)
    counts = launch(nranks, _run_oversubscribed, collective, provider=provider, timeout=120)
    assert min(counts) > 10


def _digests(rank: Rank, seed: int) -> list[int]:
    """All-reduce the same values repeatedly, with ranks arriving in any order."""
    runner, timing = Runner(rank), random.Random(seed * 100 + rank.rank)
    digests = []
    for name in ("float32", "float64", "bfloat16", "float8_e5m2", "complex64"):
        for count in (3, 1009, 30_011):
            for _ in range(4):
                time.sleep(timing.random() * 0.001)
                result = runner.run(Case("all_reduce", name, count, "SUM"))
                assert isinstance(result, np.ndarray)
                digests.append(zlib.crc32(result.tobytes()))
    return digests


@pytest.mark.parametrize("nranks", [3, 8] if FULL else [3])
def test_every_rank_and_every_run_has_the_same_bits(
    launch: Launcher, provider: str, nranks: int
) -> None:
    first = launch(nranks, _digests, 1, provider=provider)
    again = launch(nranks, _digests, 2, provider=provider)
    assert all(digests == first[0] for digests in [*first, *again])
    repeats = np.array(first[0]).reshape(-1, 4)
    assert (repeats == repeats[:, :1]).all()


@pytest.mark.parametrize(("collective", "nranks"), _pairs(4, 2))
def test_ranks_as_threads(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    launch(nranks, _run_core, collective, provider=provider, threads=True, timeout=120)


@pytest.mark.parametrize(("collective", "reading"), _pairs(*_READING))
def test_reading_of_other_processes(launch: Launcher, collective: str, reading: str) -> None:
    """With and without it, hostnccl gives the same bits."""
    launch(3, _run_core, collective, env=_READING[reading])


@pytest.mark.parametrize(
    ("collective", "isa"),
    [(name, isa) for name, isa in _pairs("baseline", "avx2") if name in collectives.REDUCING],
)
def test_code_for_older_cpus(launch: Launcher, collective: str, isa: str) -> None:
    """With their kernels, hostnccl gives the same bits."""
    launch(2, _run_small, collective, env={"HOSTNCCL_ISA": isa})


_MESSAGES = """
#include <stddef.h>
struct Call { int receives; int peer; size_t count; char* address; } calls[16];
int made;
static int note(int receives, void* address, size_t count, int peer) {
  calls[made++] = (struct Call){receives, peer, count, address};
  return 0;
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
int ncclSend(void* from, size_t count, int type, int peer) { return note(0, from, count, peer); }
int ncclRecv(void* to, size_t count, int type, int peer) { return note(1, to, count, peer); }
"""


class _Message(ctypes.Structure):
    _fields_ = [
        ("receives", ctypes.c_int),
        ("peer", ctypes.c_int),
        ("count", ctypes.c_size_t),
        ("address", ctypes.c_size_t),
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_messages_of_an_nccl_without_the_collective(tmp_path: Path, rank: int) -> None:
    """Before 2.28 all_to_all, gather and scatter are groups of sends and receives of blocks."""
    path = compile_nccl(tmp_path, 22304, _MESSAGES, with_communicators=True)
    library = ctypes.CDLL(path)
    made = ctypes.c_int.in_dll(library, "made")
    calls = (_Message * 16).in_dll(library, "calls")
    whole, other, one = (np.zeros(n, np.int32) for n in (6, 6, 2))

    def messages() -> list[tuple[bool, int, int, int]]:
        count, made.value = made.value, 0
        starts = [array.ctypes.data for array in (whole, other, one)]
        found = []
        for call in calls[:count]:
            base = max(start for start in starts if start <= call.address)
            found.append((bool(call.receives), call.peer, call.count, call.address - base))
        return found

    with nccl.Communicator(3, bytes(128), rank, provider=path) as comm:
        comm.all_to_all(whole, out=other)
        every = [(receives, peer, 2, 8 * peer) for peer in range(3) for receives in (False, True)]
        assert messages() == every
        comm.gather(one, 0, out=whole if rank == 0 else None)
        received = [(True, peer, 2, 8 * peer) for peer in range(3)] if rank == 0 else []
        assert messages() == [(False, 0, 2, 0), *received]
        comm.scatter(whole if rank == 0 else None, 0, out=one)
        sent = [(False, peer, 2, 8 * peer) for peer in range(3)] if rank == 0 else []
        assert messages() == [*sent, (True, 0, 2, 0)]
        with pytest.raises(ValueError, match=r"float8_e4m3fn needs NCCL 2\.24\.0, the loaded"):
            comm.all_reduce(one.ctypes.data, dtype="float8_e4m3fn", count=1)
