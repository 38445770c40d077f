"""Proves that the death of a rank is named by every wait that follows an operation on a stream,
that an exit without close() is a death, and that nothing stays in /dev/shm, for any signal at any
moment. tests/reliability/test_kill_matrix.py has the death of a rank in every operation.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support import shared_memory
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_Operation = Callable[[nccl.Communicator, np.ndarray, nccl.Stream], None]
_OPERATIONS: dict[str, _Operation] = {
    "all_reduce": lambda comm, array, stream: comm.all_reduce(array[:8], stream=stream),
    "large all_reduce": lambda comm, array, stream: comm.all_reduce(array, stream=stream),
    "recv": lambda comm, array, stream: comm.recv(array[:8], 1, stream=stream),
    "send": lambda comm, array, stream: comm.send(array, 1, stream=stream),
}


def _on_streams(rank: Rank, call: str) -> dict[str, list[str]]:
    """What the calls raise that follow each operation on a stream whose peer has died."""
    issued = []
    for number, (name, operation) in enumerate(_OPERATIONS.items()):
        comm, stream = rank.communicator(number), rank.stream()
        with pytest.raises(ValueError, match="address"):
            comm.all_reduce(0, count=1, dtype="int8")  # refused before: not the error of close()
        array = np.ones(1 << 20)
        if rank.rank == 0:
            operation(comm, array, stream)
        issued.append((name, comm, stream, array))
    rank.report("ready")
    if rank.rank == 1:
        time.sleep(60)
    return {name: _texts_of(rank, call, comm, stream) for name, comm, stream, _ in issued}


def _texts_of(rank: Rank, call: str, comm: nccl.Communicator, stream: nccl.Stream) -> list[str]:
    waits = [comm.close]
    if call == "close first":
        waits.append(stream.synchronize)
    elif call == "stream first":
        waits.insert(0, stream.synchronize)
    else:
        event = rank.event()
        event.record(stream)
        waits.insert(0, event.synchronize)
    texts = []
    for wait in waits:
        with pytest.raises(nccl.NcclRemoteError) as failed:
            wait()
        texts.append(str(failed.value))
    comm.close()
    return texts


@pytest.mark.parametrize("call", ["close first", "stream first", "event first"])
def test_a_death_is_named_by_what_follows_on_a_stream(launch: Launcher, call: str) -> None:
    def kill(run: Run) -> None:
        run.gather_reports()
        run.kill(1)

    ids = len(_OPERATIONS)
    outcomes = launch.outcomes(2, _on_streams, call, while_running=kill, ids=ids, timeout=60)
    assert outcomes[0].ok, f"{outcomes[0].died} {outcomes[0].trace}"
    for operation, texts in outcomes[0].value.items():
        for text in texts:
            assert "rank 1" in text, (operation, text)
            assert "died" in text, (operation, text)


def _live(rank: Rank, stop: str) -> None:
    """Communicators made, used and closed: until another rank ends, or if each signal came where
    Python ignores its exception, until a file exists.
    """
    rank.report("ready")
    for number in range(len(rank.unique_ids)):
        if os.path.exists(stop):
            return
        try:
            with rank.communicator(number) as comm:
                for size in (1, 1000, 300_000):
                    comm.all_reduce(np.ones(size))
                with comm.split(0) as child:
                    child.all_reduce(np.ones(10_000))
        except nccl.NcclError:
            return


@pytest.mark.parametrize("seed", range(6 if FULL else 2))
def test_nothing_is_left_behind_at_any_moment(launch: Launcher, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    before = shared_memory.entries()
    number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])

    def kill(run: Run) -> None:
        run.gather_reports()
        time.sleep(chance.random() * 0.4)
        for victim in chance.sample(range(3), chance.choice([1, 1, 2, 3])):
            run.kill(victim, number)
        time.sleep(0.3)
        (tmp_path / "stop").touch()

    # A rank whose peers are all dead before it connects ends at its deadline.
    env = {"HOSTNCCL_INIT_TIMEOUT": "2"}
    stop = str(tmp_path / "stop")
    outcomes = launch.outcomes(3, _live, stop, while_running=kill, ids=2000, timeout=60, env=env)
    for outcome in outcomes:
        ended_well = outcome.ok or outcome.died.startswith("killed by")
        assert ended_well or isinstance(outcome.error, KeyboardInterrupt), outcome
    assert not shared_memory.left_behind(before)


def _exit_without_close(rank: Rank) -> None:
    comm = rank.comm
    comm.all_reduce(np.ones(1000))
    if rank.rank == 1:
        os._exit(7)
    with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 .* in ncclAllReduce\("):
        comm.all_reduce(np.ones(1000))


def test_exit_without_close_is_a_death(launch: Launcher) -> None:
    outcomes = launch.outcomes(2, _exit_without_close)
    assert outcomes[0].ok, outcomes[0].trace
    assert outcomes[1].died == "exited with 7"
