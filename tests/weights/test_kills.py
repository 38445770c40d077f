"""A receiver that is killed or stopped at any point is dropped and named, and the others commit the
version. A new one joins and gets the next. The death of a sender is an error on all members.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl.testing import Rank
from pynccl.weights import PeerLostError, WeightReceiver, WeightSender
from pynccl.weights.ring import Ring, Slot
from pynccl.weights.target import Target
from pynccl.weights.wire import Link
from pynccl.weights.world import World
from tests.support.launcher import Launcher, Run
from tests.support.store import FolderStore
from tests.support.tier import FULL

LIMIT = 20.0  # seconds, of the session
POINTS = 50 if FULL else 8  # victims, one after the other
STRIDE = 3 if FULL else 18  # calls between two points: the last ones are in the third version
TAIL = 3  # versions after the last death

Model = dict[str, Any]


def make(version: int) -> Model:
    """The tensors of a version."""
    random = np.random.default_rng(version)
    model = {f"small {i}": random.random(50 + i, np.float32) for i in range(60)}
    return {**model, **{f"large {i}": random.random((70, 301)) for i in range(3)}}


def equal(model: Model, version: int) -> bool:
    expected = make(version)
    return model.keys() == expected.keys() and all(
        np.array_equal(model[name], expected[name]) for name in expected
    )


def send(folder: str) -> list[Any]:
    """Send versions until all victims have died; return the number, losses and seconds of each."""
    results = []
    after = 0
    with WeightSender(
        FolderStore(folder),
        bucket_bytes=1 << 16,
        timeout=LIMIT,
        library="numpy",
    ) as sender:
        while after < TAIL:
            after += Path(folder, "over").exists()
            began = time.monotonic()
            report = sender.send(make(sender.version + 1))
            results.append((report.version, report.lost, time.monotonic() - began))
    return results


def receive(folder: str) -> list[int]:
    """Receive and check all versions; return their numbers."""
    seen = []
    with WeightReceiver(
        FolderStore(folder), name="engine", timeout=LIMIT, library="numpy"
    ) as receiver:
        for report in receiver:
            assert equal(receiver.tensors, report.version)
            seen.append(report.version)
            Path(folder, "turn 0").touch()  # it is there before the first victim
    return seen


def die_at(point: int) -> None:
    """Kill this process at the given call of a receiver's functions."""
    left = [point]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (Link, "send"),
        (Link, "receive"),
        (World, "__init__"),
        (Target, "commit"),
        (Ring, "__init__"),
        (Ring, "_start"),
        (Slot, "wait"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))


def member(rank: Rank, folder: str) -> list[Any]:
    """Rank 0 sends, rank 1 receives. The others join one after the other and kill themselves."""
    if rank.rank == 0:
        return send(folder)
    if rank.rank == 1:
        return receive(folder)
    turn = rank.rank - 2
    while not Path(folder, f"turn {turn}").exists():
        time.sleep(0.01)
    receiver = WeightReceiver(
        FolderStore(folder), name=f"victim {turn}", timeout=LIMIT, library="numpy"
    )
    die_at(turn * STRIDE)
    for report in receiver:
        assert equal(receiver.tensors, report.version)
    return []


def test_killed_receivers(launch: Launcher, tmp_path: Path) -> None:
    def watch(run: Run) -> None:
        for turn in range(POINTS):
            if turn:
                (tmp_path / f"turn {turn}").touch()
            try:
                run._processes[turn + 2].popen.wait(60)
            except subprocess.TimeoutExpired:
                for outcome in run.outcomes(timeout=0.1):  # show the state of all ranks
                    print(outcome.rank, outcome.died, outcome.error, outcome.trace)
                raise
        (tmp_path / "over").touch()

    with launch.start(
        POINTS + 2,
        member,
        (str(tmp_path),),
        unique_ids=0,
        timeout=280,
        grace=270,
        fresh=True,
    ) as run:
        watch(run)
        outcomes = run.outcomes()
    for rank in (0, 1):
        assert outcomes[rank].ok, outcomes[rank].trace or outcomes[rank].error
    assert all(outcome.died == "killed by SIGKILL" for outcome in outcomes[2:])
    results = outcomes[0].value
    lost = [name for _, names, _ in results for name in names]
    assert lost == [f"victim {turn}" for turn in range(POINTS)]
    assert max(seconds for *_, seconds in results) < LIMIT
    # The engine has every version.
    assert outcomes[1].value == [version for version, *_ in results]


def stopped(rank: Rank, folder: str) -> Any:  # noqa: ANN401
    """The last rank stops in its second version, for longer than the timeout."""
    limit = 5.0
    store = FolderStore(folder)
    if rank.rank == 0:
        with WeightSender(store, receivers=2, timeout=limit, library="numpy") as sender:
            lost = []
            for version in range(1, 4):
                lost.append(sender.send(make(version)).lost)
            rank.report("done")
        return lost
    with WeightReceiver(
        store, name=f"engine {rank.rank}", timeout=limit, library="numpy"
    ) as receiver:
        receiver.receive()
        if rank.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
            with pytest.raises(PeerLostError):
                list(receiver)
            return None
        return [receiver.version, *(report.version for report in receiver)]


def test_stopped_receiver(launch: Launcher, tmp_path: Path) -> None:
    def resume(run: Run) -> None:
        for _ in run.reports():
            run.kill(2, signal.SIGCONT)

    with launch.start(3, stopped, (str(tmp_path),), unique_ids=0, timeout=60, fresh=True) as run:
        resume(run)
        lost, seen, _ = run.results()
    assert lost == [(), ("engine 2",), ()]
    assert seen == [1, 2, 3]


def sender_dies(rank: Rank, folder: str) -> None:
    if rank.rank == 0:
        with WeightSender(FolderStore(folder), receivers=2, timeout=LIMIT) as sender:
            sender.send(make(1))
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                sender.send(make(2))
    receiver = WeightReceiver(FolderStore(folder), timeout=LIMIT, library="numpy")
    with pytest.raises(PeerLostError, match="sender"):
        list(receiver)
    # The committed version is complete.
    version = receiver.version
    assert receiver.is_whole
    assert version is not None
    assert equal(receiver.tensors, min(version, 2))


def test_killed_sender(launch: Launcher, tmp_path: Path) -> None:
    outcomes = launch.outcomes(3, sender_dies, str(tmp_path), ids=0, timeout=40)
    assert outcomes[0].died == "killed by SIGKILL"
    assert outcomes[1].ok, outcomes[1].error
    assert outcomes[2].ok, outcomes[2].error


def forks(rank: Rank, folder: str) -> None:
    """Rank 0 sends a version, forks a child that outlives it, and dies."""
    pids = Path(folder, "child")
    if rank.rank == 0:
        sender = WeightSender(FolderStore(folder), timeout=60)
        while not sender.waiting():
            time.sleep(0.01)
        if (child := os.fork()) == 0:  # its close() does not affect its parent
            sender.close()
            os._exit(0)
        os.waitpid(child, 0)
        sender.send(make(1))
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        pids.write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    with WeightReceiver(FolderStore(folder), timeout=60, library="numpy") as receiver:
        receiver.receive()
        try:
            with pytest.raises(PeerLostError, match="the sender is lost"):
                receiver.receive(LIMIT)
        finally:
            while not pids.exists():
                time.sleep(0.01)
            os.kill(int(pids.read_text()), signal.SIGKILL)


def test_forked_child_does_not_hide_the_death_of_its_parent(
    launch: Launcher, tmp_path: Path
) -> None:
    """For example, a DataLoader worker inherits its parent's sockets."""
    outcomes = launch.outcomes(2, forks, str(tmp_path), ids=0, timeout=60)
    assert outcomes[0].died == "killed by SIGKILL"
    assert outcomes[1].ok, outcomes[1].trace or outcomes[1].error
