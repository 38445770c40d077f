"""Proves that the error of a waiting rank explains why the awaited rank is missing: its wait in
another communicator, or its error there.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import when_blocked
from tests.support.cpp import compile_with_parts, compiler
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_LATE = 1.0  # seconds, of the rank whose error is checked
_LIMIT = 20.0  # seconds, of the others


@contextlib.contextmanager
def _communicators(
    rank: Rank, ranks: dict[str, tuple[int, ...]] | None = None
) -> Iterator[dict[str, nccl.Communicator]]:
    """The communicators of this rank, aborted at the end. By default A has 0 and 1, B 1 and the
    others.
    """
    comms = {}
    with contextlib.ExitStack() as stack:
        others = (1, 2) if rank.nranks == 3 else (*range(2, rank.nranks), 1)
        for number, (name, members) in enumerate((ranks or {"A": (0, 1), "B": others}).items()):
            if rank.rank in members:
                unique_id, own = rank.unique_ids[number], members.index(rank.rank)
                size, config = len(members), nccl.Config(timeout=_LIMIT, comm_name=name)
                comm = nccl.Communicator(size, unique_id, own, config=config, provider="host")
                stack.callback(comm.abort)
                comms[name] = comm
        yield comms


def _small() -> np.ndarray:
    return np.ones(4, np.float32)


def _wait(comm: nccl.Communicator, stream: nccl.Stream | None = None) -> str:
    try:
        comm.all_reduce(_small(), stream=stream)
        if stream:
            stream.synchronize()
    except nccl.NcclError as error:
        return str(error)
    raise AssertionError("it did not raise")


def _wait_visibly(rank: Rank, comm: nccl.Communicator) -> str:
    """Set the event "waits" as soon as this rank waits in the communicator."""
    teller = when_blocked(lambda: rank.set_event("waits"))
    try:
        return _wait(comm)
    finally:
        teller.join()


def _wait_in_vain(rank: Rank, comm: nccl.Communicator) -> str:
    """Let the others finish once this rank has its error, after a short limit."""
    comm.timeout = _LATE
    try:
        return _wait(comm)
    finally:
        rank.set_event("has its error")


def _chain(rank: Rank) -> str:
    """Rank 0 waits in A for rank 1, which waits in B for rank 2, which waits in C for rank 3."""
    with _communicators(rank, {"A": (0, 1), "B": (1, 2), "C": (2, 3)}) as comms:
        if rank.rank == 0:
            rank.wait_event("waits", 1, 2)
            return _wait_in_vain(rank, comms["A"])
        if rank.rank < 3:
            return _wait_visibly(rank, comms["BC"[rank.rank - 1]])
        rank.wait_event("has its error", 0)
    return ""


def test_a_rank_that_waits_elsewhere(launch: Launcher) -> None:
    first, _, third, _ = launch(4, _chain, ids=3, timeout=60)
    number = r"rank \d \(pid \d+\)"
    assert re.search(r"waited for rank 1 in ncclAllReduce\(", first), first
    for name in "BC":
        waits = rf"{number} waits for rank 1 in ncclAllReduce\([^;]*of communicator {name}"
        assert re.search(waits, first), first
    assert re.search(r"rank 1 .*aborted its communicator", third), third


def _two_missing(rank: Rank) -> str:
    with _communicators(rank, {"A": (0, 1, 2)}) as comms:
        if rank.rank == 0:
            return _wait_in_vain(rank, comms["A"])
        rank.wait_event("has its error", 0)
    return ""


def test_all_missing_ranks_are_named(launch: Launcher) -> None:
    first = launch(3, _two_missing, timeout=60)[0]
    assert "waited for ranks 1 and 2 in ncclAllReduce(" in first


def _queued(rank: Rank) -> str:
    """On rank 1 the all_reduce of A is behind that of B on a stream."""
    with _communicators(rank) as comms:
        if rank.rank == 0:
            return _wait_visibly(rank, comms["A"])
        if rank.rank == 1:
            rank.wait_event("waits", 0)
            stream = rank.stream()
            comms["B"].timeout = 5 * _LATE  # then the wait for the stream ends
            comms["B"].all_reduce(_small(), stream=stream)
            comms["A"].timeout = _LATE
            try:
                return _wait(comms["A"], stream)
            finally:
                rank.set_event("has its error")
        rank.wait_event("has its error", 1)
    return ""


def test_a_rank_whose_operation_is_queued(launch: Launcher) -> None:
    first, _, _ = launch(3, _queued, ids=2, timeout=60)
    waits = r"rank 0 \(pid \d+\) waits for rank 1 in ncclAllReduce\(.*\) of communicator B"
    assert re.search(rf"rank 1 \(pid \d+\) revoked its communicator; {waits}", first), first


def _failed(rank: Rank, before: bool) -> str:
    """Rank 1 fails in B, or learns that B failed on other ranks, and never calls A."""
    text = ""
    with _communicators(rank) as comms:
        if rank.rank == 0:
            rank.wait_event("has failed", 1)
            return _wait_in_vain(rank, comms["A"])
        if rank.rank == 1:
            rank.wait_event("has failed", *([2, 3] if before else []))
            text = _wait(comms["B"])
        else:
            with pytest.raises(nccl.NcclError, match="different calls"):
                comms["B"].all_reduce(np.ones(3 + rank.rank, np.float32))
        rank.set_event("has failed")
        rank.wait_event("has its error", 0)
    return text


@pytest.mark.parametrize(
    ("nranks", "who", "count"),
    [(3, "", "count=5"), (4, r"rank 2 \(pid \d+\) ", "count=6")],
    ids=["itself", "its communicator"],
)
def test_a_rank_that_has_failed(launch: Launcher, nranks: int, who: str, count: str) -> None:
    first, second, *_ = launch(nranks, _failed, nranks == 4, ids=2, timeout=60)
    assert "different calls" in second
    text = "has failed in communicator B: the ranks make different calls: "
    assert re.search(f"{who}{text}", first)
    assert count in first


@pytest.fixture(scope="module")
def segment_failure(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines that segment_failure.cpp prints."""
    program = tmp_path_factory.mktemp("segment") / "segment_failure"
    base = "error flag keys params process tuning"
    parts = [f"base/{name}.cpp" for name in base.split()]
    parts += ["segment/memory.cpp", "segment/segment.cpp"]
    own = [Path(__file__).with_name("segment_failure.cpp")]
    compile_with_parts(compiler(), program, own, parts, ["-pthread"])
    done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def test_a_failure_is_read_after_a_preemption_of_its_writer(segment_failure: list[str]) -> None:
    assert "6: rank 1 (pid 2) died" in segment_failure


def test_a_failure_does_not_end_a_wait_that_is_over(segment_failure: list[str]) -> None:
    """A rank may be preempted between its looks at the flag and at the failure."""
    assert "before the failure: no error" in segment_failure
    assert "not signalled: rank 1 (pid 2) died" in segment_failure
    assert "signalled: no error" in segment_failure


def test_a_killed_writer_of_a_failure_is_awaited_once(segment_failure: list[str]) -> None:
    assert segment_failure.count("a rank died while it reported a failure") == 3
    assert "waited once" in segment_failure
