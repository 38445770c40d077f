"""Proves that every collective gives what NumPy gives: every dtype and operator, small to large, in place and not, on the
calling thread and on a stream, in worlds of 1 to 16 ranks; and that ranks agree in every bit, in every run.
"""

from __future__ import annotations

import random
import time
import zlib

import collectives
import dtypes
import numpy as np
import pytest
from collectives import Case, Runner
from launcher import Launcher
from worker import Rank

# 0, one, odd, prime; the last passes 16 KiB with every dtype, where hostnccl stops copying through shared memory.
_COUNTS = (0, 1, 7, 1009)
_LONG = 20011
_LARGE = 3_000_017  # bytes, past every internal chunk



def _run_small(rank: Rank, collective: str) -> int:
    runner = Runner(rank)
    done = runner.run_all(collectives.product(collective, rank.nranks, dtypes.ALL, _COUNTS))
    long = collectives.product(collective, rank.nranks, dtypes.ALL, (_LONG,))
    return done + runner.run_all(collectives.thin(long, 5))


def _large_cases(collective: str, nranks: int) -> list[Case]:
    """Each dtype once, and float32 with every operator."""
    blocks = nranks if collective in ("reduce_scatter", "all_to_all", "scatter") else 1
    cases = []
    for number, name in enumerate(dtypes.ALL):
        count = _LARGE // dtypes.numpy_dtype(name).itemsize // blocks
        ops = dtypes.operators(name) if collective in collectives.REDUCING else ("",)
        for op in ops if name == "float32" else ops[number % len(ops) :][:1]:
            in_place = collective != "all_to_all" and len(cases) % 2 == 0
            stream = len(cases) % 3 == 0
            cases.append(Case(collective, name, count, op, in_place, stream, number % nranks))
    return cases


def _run_large(rank: Rank, collective: str) -> int:
    return Runner(rank).run_all(iter(_large_cases(collective, rank.nranks)))


def _run_crowded(rank: Rank, collective: str) -> int:
    """Worlds with more ranks than cores: all dtypes, all counts, fewer combinations of them."""
    runner = Runner(rank)
    done = runner.run_all(
        collectives.thin(collectives.product(collective, rank.nranks, dtypes.ALL, (1, 1009)), 11)
    )
    done += runner.run_all(
        collectives.thin(collectives.product(collective, rank.nranks, ("float32",), (0, 7)), 3)
    )
    large = _large_cases(collective, rank.nranks)
    return done + runner.run_all(iter(large[:: len(large) // 2]))


@pytest.mark.parametrize("nranks", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", collectives.ALL)
def test_small(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    counts = launch(nranks, _run_small, collective, provider=provider, timeout=120)
    assert min(counts) > 100


@pytest.mark.parametrize("nranks", [2, 3, 4])
@pytest.mark.parametrize("collective", collectives.ALL)
def test_large(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    counts = launch(nranks, _run_large, collective, provider=provider, timeout=120)
    assert min(counts) >= len(dtypes.ALL)


@pytest.mark.parametrize("nranks", [8, 16])
@pytest.mark.parametrize("collective", collectives.ALL)
def test_many_ranks(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    counts = launch(nranks, _run_crowded, collective, provider=provider, timeout=120)
    assert min(counts) > 10


def _digests(rank: Rank, seed: int) -> list[int]:
    """All-reduce the same values again and again, the ranks arriving in every order."""
    runner, timing = Runner(rank), random.Random(seed * 100 + rank.rank)
    digests = []
    for name in ("float32", "float64", "bfloat16", "float8_e5m2", "complex64"):
        for count in (3, 1009, 100_003):
            for _ in range(4):
                time.sleep(timing.random() * 0.002)
                result = runner.run(Case("all_reduce", name, count, "SUM"))
                assert isinstance(result, np.ndarray)
                digests.append(zlib.crc32(result.tobytes()))
    return digests


@pytest.mark.parametrize("nranks", [3, 8])
def test_every_rank_and_every_run_has_the_same_bits(
    launch: Launcher, provider: str, nranks: int
) -> None:
    first = launch(nranks, _digests, 1, provider=provider)
    again = launch(nranks, _digests, 2, provider=provider)
    assert all(digests == first[0] for digests in [*first, *again])
    repeats = np.array(first[0]).reshape(-1, 4)
    assert (repeats == repeats[:, :1]).all()


def _run_in_processes_or_threads(rank: Rank, collective: str) -> int:
    runner = Runner(rank)
    names = ("float32", "bfloat16", "int8")
    cases = collectives.product(collective, rank.nranks, names, (0, 1, 1009, 50_021))
    return runner.run_all(collectives.thin(cases, 3))


@pytest.mark.parametrize("nranks", [2, 4])
@pytest.mark.parametrize("collective", collectives.ALL)
def test_ranks_as_threads(launch: Launcher, provider: str, collective: str, nranks: int) -> None:
    launch(nranks, _run_in_processes_or_threads, collective, provider=provider, threads=True)


@pytest.mark.parametrize(
    "env",
    [{"HOSTNCCL_CMA": "0"}, {"HOSTNCCL_ISA": "baseline"}, {"HOSTNCCL_ISA": "avx2"}],
    ids=lambda env: "=".join(*env.items()),
)
@pytest.mark.parametrize("collective", collectives.ALL)
def test_other_paths_of_hostnccl(launch: Launcher, collective: str, env: dict[str, str]) -> None:
    """Without single copy, and with the code for older CPUs: the same bits."""
    launch(3, _run_small, collective, env=env, timeout=120)
    launch(3, _run_large, collective, env=env, timeout=120)
