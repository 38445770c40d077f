"""Proves that ranks always agree on the surviving ranks: at random times around the limit, in
several successive agreements; in hostnccl and through a store.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from pynccl import _C
from pynccl._internal.recovery import Rounds
from pynccl.errors import NcclRemoteError
from tests.support.blocking import in_threads
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.tier import FULL

_NRANKS = 4
_LIMIT = 0.01  # seconds
_ROUNDS = 3
_REPEATS = 200 if FULL else 10

Lost = list[int]


def _agree_repeatedly(rank: int, seed: int, agree: Callable[[], Lost]) -> list[Lost | None]:
    """The results of the agreements, with None at the end if this rank was excluded. One rank of
    each odd seed joins the last agreement after the others stopped waiting.
    """
    times = random.Random(f"{seed} {rank}")
    absent = seed % 2 == 1 and rank == seed // 2 % _NRANKS
    results: list[Lost | None] = []
    for number in range(_ROUNDS):
        late = absent and number == _ROUNDS - 1
        time.sleep((30 if late else 3 * times.random()) * _LIMIT)
        try:
            results.append(agree())
        except NcclRemoteError:
            results.append(None)
            break
    return results


def _check(results: Sequence[list[Lost | None]]) -> int:
    """Check the results of the ranks. Returns the number of excluded ranks."""
    out, early = set[int](), set[int]()
    for number in range(_ROUNDS):
        now = {rank: of[number] for rank, of in enumerate(results) if number < len(of)}
        agreed = [lost for lost in now.values() if lost is not None]
        assert agreed, results  # the deciding rank is never excluded
        assert all(lost == agreed[0] for lost in agreed), results
        out |= {rank for rank, lost in now.items() if lost is None}
        # A slow rank may read only the next decision, which excludes it.
        early = out - set(agreed[0])
        assert set(agreed[0]) <= out, results
    assert not early, results
    return len(out)


def test_a_rank_may_learn_of_the_next_agreement() -> None:
    slow: list[list[Lost | None]] = [[[], [1, 2], [1, 2]], [[], None], [None], [[], [1, 2], [1, 2]]]
    assert _check(slow) == 2
    for wrong in ([None], [[], [1, 2], [1, 2]]):
        with pytest.raises(AssertionError):
            _check([[[], [], []], [[], [], []], wrong])


class _Slow:
    """A store whose calls take random times."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: object) -> object:
            time.sleep(random.random() * _LIMIT)
            return getattr(self._store, name)(*args)

        return call


def _in_hostnccl(rank: Rank) -> list[list[Lost | None]]:
    results = []
    for seed in range(_REPEATS):
        comm = rank.comm.split(0)
        _C.begin_recovery(comm)
        results.append(
            _agree_repeatedly(rank.rank, seed, lambda c=comm: _C.agree(c, _LIMIT, []) or [])
        )
        comm.abort()
    return results


@pytest.mark.parametrize("threads", [False, True])
def test_ranks_agree_in_hostnccl(launch: Launcher, threads: bool) -> None:
    by_rank = launch(_NRANKS, _in_hostnccl, threads=threads)
    excluded = [_check(results) for results in zip(*by_rank, strict=True)]
    assert any(excluded)


def test_ranks_agree_through_a_store() -> None:
    distributed = pytest.importorskip("torch._C._distributed_c10d")
    excluded = 0
    for seed in range(_REPEATS // 2):
        store = _Slow(distributed.HashStore())

        def run(rank: int, store: object = store, seed: int = seed) -> list[Lost | None]:
            rounds = Rounds("test", _NRANKS)
            return _agree_repeatedly(rank, seed, lambda: rounds.agree(store, rank, _LIMIT))

        excluded += _check(in_threads(*(partial(run, rank) for rank in range(_NRANKS))))
    assert excluded


def test_an_agreement_does_not_wait_for_dead_ranks() -> None:
    store = pytest.importorskip("torch._C._distributed_c10d").HashStore()
    began, limit = time.monotonic(), 60
    agreed = Rounds("test", 3).agree(store, 0, limit, lost=[1], gone=lambda _rank: True)
    assert agreed == [1, 2]
    assert time.monotonic() - began < limit
