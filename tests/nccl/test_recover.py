"""Proves Communicator.recover(): after ranks died, were stopped or expired, the surviving ranks
continue with correct results, or all raise. An excluded rank gets an error. Ranks always agree on
the surviving ones, in hostnccl and through a store.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from pynccl import _C, nccl
from pynccl._internal.recovery import Rounds
from tests.nccl.test_life import check_works
from tests.support import shared_memory
from tests.support.blocking import in_threads
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_TIMEOUT = 300.0  # seconds to take part, if all do; a wait for it would exceed that of a launch
_SHORT = 2.0  # seconds, if a rank does not; the others begin together
_NRANKS = 4


def _reduce_forever(rank: Rank, comm: nccl.Communicator) -> None:
    buffer = rank.memory.put(np.ones(100_000, np.float32))
    stream = rank.stream()
    while True:
        comm.all_reduce(buffer, nccl.MAX, stream=stream)
        stream.synchronize()


def _reduce_until_it_fails(rank: Rank, comm: nccl.Communicator) -> None:
    """On a GPU the call returns, and the stream waits until the communicator expires."""
    with pytest.raises((nccl.NcclRemoteError, nccl.NcclTimeoutError)):
        _reduce_forever(rank, comm)


def _meet(rank: Rank, *ranks: int) -> None:
    """Wait until these ranks call it, so that all call recover() within its time limit."""
    rank.set_event("meets")
    rank.wait_event("meets", *ranks)


def _recover(rank: Rank, left: list[int], timeout: float) -> None:
    check_works(rank, rank.comm, list(range(_NRANKS)))
    comm = rank.communicator(1, config=nccl.Config(timeout=1.5))
    rank.report("ready")
    if rank.rank not in left:
        time.sleep(60)  # until it is killed or stopped
    _reduce_until_it_fails(rank, comm)
    comm.timeout = 31.5
    store = rank.store() if rank.provider == "cuda" else None
    _meet(rank, *left)
    with comm.recover(timeout, store=store) as smaller:
        assert comm.closed
        check_works(rank, smaller, left)
        assert smaller.timeout == 31.5
        with smaller.split(0, key=-smaller.rank) as turned:
            check_works(rank, turned, left[::-1])
    rank.report("done")


# Some wait for the timeout, with stopped ranks each time, so the short tier has fewer cases.
_LOST = [[1], [0], [0, 3], [0, 1, 2]]


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        *((signal.SIGKILL, lost) for lost in (_LOST if FULL else _LOST[::2])),
        *((signal.SIGSTOP, lost) for lost in (_LOST if FULL else _LOST[2:3])),
    ],
    ids=str,
)
def test_the_surviving_ranks_continue(
    launch: Launcher, provider: str, how: signal.Signals, lost: list[int]
) -> None:
    left = [rank for rank in range(_NRANKS) if rank not in lost]
    before = shared_memory.entries()

    def end_ranks(run: Run) -> None:
        run.gather_reports()
        for rank in lost:
            run.kill(rank, how)
        if how == signal.SIGSTOP:
            list(itertools.islice(run.reports(), len(left)))
            for rank in lost:
                run.kill(rank)

    timeout = _TIMEOUT if provider == "host" and how == signal.SIGKILL else _SHORT
    outcomes = launch.outcomes(
        _NRANKS, _recover, left, timeout,
        provider=provider, ids=2, while_running=end_ranks
    )  # fmt: skip
    for rank in left:
        assert outcomes[rank].ok, f"rank {rank}: {outcomes[rank].died} {outcomes[rank].trace}"
    assert not shared_memory.left_behind(before)


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads")
def test_all_ranks_continue_if_none_is_lost(rank: Rank) -> None:
    """One rank has an error of its own, and the others wait for it."""
    comm = rank.comm
    comm.timeout = 20
    store = rank.store() if rank.provider == "cuda" else None
    for attempt in range(3):
        check_works(rank, comm, [0, 1, 2])
        if rank.rank != 1 and rank.provider == "host":
            _reduce_until_it_fails(rank, comm)
        comm = comm.recover(_TIMEOUT, store=store)
        assert comm.timeout == 20
        if attempt == 1:
            comm.revoke()
            comm = comm.recover(_TIMEOUT, store=store)
    check_works(rank, comm, [0, 1, 2])
    comm.close()


@pytest.mark.parametrize("env", [{"HOSTNCCL_STRICT": "0"}, {"HOSTNCCL_STRICT": "1"}], ids=str)
@on_ranks(2, by="env")
def test_an_unused_id_for_new_ranks_is_void(rank: Rank) -> None:
    comm = rank.comm
    if rank.rank == 0:
        comm.get_unique_id()
    with comm.recover(_TIMEOUT) as recovered:
        check_works(rank, recovered, [0, 1])


@pytest.mark.parametrize("expires", [False, True])
@on_ranks(3, fresh=True)
def test_a_late_rank_is_told_that_it_was_excluded(rank: Rank, expires: bool) -> None:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:
        if expires:
            with nccl.deadline(0.2), pytest.raises(nccl.NcclTimeoutError):
                comm.recv(np.ones(10, np.float32), 0)
        rank.set_event("expired")
        rank.wait_event("recovered", 0, 1)
        if not expires:
            with pytest.raises(nccl.NcclRemoteError, match=r"revoked|aborted"):
                comm.all_reduce(np.ones(10, np.float32))
        for _ in range(2):
            text = "^hostCommAgree failed on rank 2.*was excluded"
            with pytest.raises(nccl.NcclRemoteError, match=text):
                comm.recover(_TIMEOUT)
        rank.set_event("told")
        comm.abort()
        return
    rank.wait_event("expired", 2)
    _meet(rank, 0, 1)
    with comm.recover(_SHORT) as smaller:
        check_works(rank, smaller, [0, 1])
        rank.set_event("recovered")
        rank.wait_event("told", 2)
        check_works(rank, smaller, [0, 1])


def _recover_with_a_death(rank: Rank, delay: float) -> str:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2, 3])
    rank.comm.recover(_TIMEOUT).close()
    comm = rank.communicator(1)
    if rank.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank.rank == 1:
        comm.revoke()
        pid = os.fork()
        if pid == 0:  # ends this rank while it recovers
            time.sleep(delay)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
    with comm.recover(_TIMEOUT) as smaller:
        if smaller.nranks == 2:
            check_works(rank, smaller, [0, 2])
            return "without"
        try:
            for _ in range(1000):
                check_works(rank, smaller, [0, 1, 2])
        except nccl.NcclRemoteError:
            with smaller.recover(_TIMEOUT) as smallest:
                check_works(rank, smallest, [0, 2])
        return "after"


_DELAYS = [0.0, 0.0005, 0.001, 0.002, 0.004, 0.2]


@pytest.mark.parametrize("delay", _DELAYS if FULL else _DELAYS[::2])
def test_a_rank_that_dies_during_the_recovery(launch: Launcher, delay: float) -> None:
    outcomes = launch.outcomes(4, _recover_with_a_death, delay, ids=2)
    for rank in (0, 2):
        assert outcomes[rank].ok, f"rank {rank}: {outcomes[rank].died} {outcomes[rank].trace}"
    assert outcomes[0].value == outcomes[2].value


@on_ranks(3, fresh=True)
def test_all_raise_if_a_member_does_not_create_it(rank: Rank) -> None:
    """Rank 1 agrees but does not create the communicator. The others raise, and exclude it."""
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 1:
        _C.begin_recovery(comm)
        assert _C.agree(comm, _TIMEOUT, []) == []
        rank.wait_event("excluded", 0, 2)
        with pytest.raises(nccl.NcclRemoteError, match="was excluded"):
            comm.recover(_TIMEOUT)
        comm.abort()
        return
    _meet(rank, 0, 2)
    began = time.monotonic()
    with pytest.raises(nccl.NcclTimeoutError, match=r"rank 1 \(pid \d+\) did not take part"):
        comm.recover(_SHORT)
    assert time.monotonic() - began > 0.9 * _SHORT
    with comm.recover(_SHORT) as smaller:
        check_works(rank, smaller, [0, 2])
        rank.set_event("excluded")


def _shrink(comm: nccl.Communicator) -> None:
    comm.shrink([2])


def _split_the_revoked(comm: nccl.Communicator) -> None:
    comm.revoke()
    comm.split(0)


@pytest.mark.parametrize("create", [_shrink, _split_the_revoked])
@on_ranks(3, fresh=True)
def test_a_rank_that_recovers_joins_no_other_communicator(
    rank: Rank, create: Callable[[nccl.Communicator], None]
) -> None:
    """Rank 0 has seen no error yet, and creates a communicator without rank 2."""
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:
        rank.wait_event("done", 0, 1)
        return
    if rank.rank == 0:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 \(pid \d+\) recovers"):
            create(comm)
    with comm.recover(_TIMEOUT, exclude=[2]) as smaller:
        check_works(rank, smaller, [0, 1])
    rank.set_event("done")


@on_ranks(3, by="provider", fresh=True)
def test_excluded_ranks_are_not_waited_for(rank: Rank) -> None:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 1:
        rank.wait_event("done", 0, 2)
        return
    with comm.recover(_TIMEOUT, exclude=[1]) as smaller:
        check_works(rank, smaller, [0, 2])
    rank.set_event("done")


@on_ranks(2, by="provider")
def test_wrong_arguments(rank: Rank) -> None:
    comm = rank.comm
    for kwargs, error, text in [
        ({"timeout": 0}, ValueError, "timeout: 0 must be above 0 seconds"),
        ({"timeout": "1"}, TypeError, "timeout: expected seconds, got '1'"),
        ({"exclude": [9]}, ValueError, "exclude: rank 9 is out of range for .* of size 2"),
        ({"exclude": [rank.rank]}, ValueError, f"exclude: rank {rank.rank} is this rank"),
        ({"exclude": "1"}, TypeError, "exclude: expected a sequence of ranks, got '1'"),
    ]:
        with pytest.raises(error, match=text):
            comm.recover(**kwargs)
    if rank.provider == "cuda":
        with pytest.raises(ValueError, match="recover: pass store or exclude"):
            comm.recover()
    with nccl.group(), pytest.raises(ValueError, match=r"recover: .* inside group\(\)"):
        comm.recover()
    check_works(rank, comm, [0, 1])
    comm.close()
    with pytest.raises(ValueError, match="closed"):
        comm.recover(exclude=[1 - rank.rank])


# Agreement

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
        except nccl.NcclRemoteError:
            results.append(None)
            break
    return results


def _check_agreements(results: Sequence[list[Lost | None]]) -> int:
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
    assert _check_agreements(slow) == 2
    for wrong in ([None], [[], [1, 2], [1, 2]]):
        with pytest.raises(AssertionError):
            _check_agreements([[[], [], []], [[], [], []], wrong])


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
    excluded = [_check_agreements(results) for results in zip(*by_rank, strict=True)]
    assert any(excluded)


def test_ranks_agree_through_a_store() -> None:
    distributed = pytest.importorskip("torch._C._distributed_c10d")
    excluded = 0
    for seed in range(_REPEATS // 2):
        store = _Slow(distributed.HashStore())

        def run(rank: int, store: object = store, seed: int = seed) -> list[Lost | None]:
            rounds = Rounds("test", _NRANKS)
            return _agree_repeatedly(rank, seed, lambda: rounds.agree(store, rank, _LIMIT))

        excluded += _check_agreements(in_threads(*(partial(run, rank) for rank in range(_NRANKS))))
    assert excluded


def test_an_agreement_does_not_wait_for_dead_ranks() -> None:
    store = pytest.importorskip("torch._C._distributed_c10d").HashStore()
    began, limit = time.monotonic(), 60
    agreed = Rounds("test", 3).agree(store, 0, limit, lost=[1], gone=lambda _rank: True)
    assert agreed == [1, 2]
    assert time.monotonic() - began < limit
