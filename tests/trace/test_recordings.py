"""Proves that a recording contains every operation until the process is killed, hangs or reaches
the limit, and that other files are rejected.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from pynccl import _C, nccl
from pynccl.tools.trace import chrome, recording
from pynccl.tools.trace.model import TraceError
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

COUNT = 1000


PROGRAM = """
import os, sys, time
import numpy as np
from pynccl import nccl
comm = nccl.Communicator(1, nccl.get_unique_id("host"), 0)
x = np.ones(10, np.float32)
for _ in range({count}):
    comm.all_reduce(x)
with nccl.group():
    comm.broadcast(x, 0)
{end}
"""


def test_traces_by_the_environment(tmp_path: Path) -> None:
    program, path = PROGRAM.format(count=3, end=""), str(tmp_path / "whole.json")
    done = run_python("-c", program, PYNCCL_TRACE=path, RANK="5")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["whole.5.json"]
    events = json.loads((tmp_path / "whole.5.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "all_reduce" for event in events) >= 3


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_recordings_by_the_environment(tmp_path: Path, end: str) -> None:
    path = tmp_path / "program.rec"
    program = PROGRAM.format(count=4000, end=f"time.sleep(0.5)\n{end}" if end else "")
    done = run_python("-c", program, PYNCCL_RECORD=str(path), RANK="7")
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    (trace,) = chrome.load(tmp_path / "program.7.rec")
    assert (trace.rank, trace.timed, trace.dropped) == (7, False, 0)
    assert [o.kind for o in trace.operations] == ["all_reduce"] * 4000 + ["broadcast"]
    assert [o.sequence for o in trace.operations] == list(range(1, 4002))
    called = [o.called for o in trace.operations]
    assert called == sorted(called)
    assert all(o.began is o.ended is o.returned is None for o in trace.operations)


_LAUNCHES = """
import numpy as np
from pynccl.testing import launch

def run(rank):
    from pynccl import nccl
    rank.comm.all_reduce(np.ones(10, np.float32))

if __name__ == "__main__":
    launch(2, run)
"""


def test_launched_ranks_write_at_their_end(tmp_path: Path) -> None:
    """Their processes end by os._exit, which calls no registered functions."""
    script, record, trace = (tmp_path / name for name in ("run.py", "run.rec", "run.json"))
    script.write_text(_LAUNCHES)
    done = run_python(str(script), PYNCCL_RECORD=str(record), PYNCCL_TRACE=str(trace))
    assert done.returncode == 0, done.stderr
    made = sorted(tmp_path.glob("run.*.*"))
    assert len(made) == 4, made
    for path in made:
        (recorded,) = chrome.load(path)
        assert [operation.kind for operation in recorded.operations] == ["all_reduce"]


def test_a_recording_keeps_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "program"
    env = {"PYNCCL_RECORD": str(path), "RANK": "0", "PYNCCL_RECORD_LIMIT": "12800"}
    done = run_python("-c", PROGRAM.format(count=1000, end=""), **env)
    assert done.returncode == 0, done.stderr
    (trace,) = chrome.load(tmp_path / "program.0")
    assert len(trace.operations) == 100
    assert trace.dropped >= 900
    assert (tmp_path / "program.0").stat().st_size < 20_000


def test_no_recording_without_operations(tmp_path: Path) -> None:
    done = run_python("-c", "from pynccl import nccl", PYNCCL_RECORD=str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_a_recording_that_cannot_be_written(tmp_path: Path) -> None:
    env = {"PYNCCL_RECORD": str(tmp_path / "missing" / "file")}
    done = run_python("-c", PROGRAM.format(count=3, end=""), **env)
    assert "the recording was stopped" in done.stderr
    for text in ("1 GB", "\u00b2", "9" * 23):
        done = run_python("-c", "from pynccl import nccl", PYNCCL_RECORD_LIMIT=text, **env)
        assert f"PYNCCL_RECORD_LIMIT: {text!r} is not a number of bytes" in done.stderr


def test_the_end_of_a_recording_that_cannot_be_written(tmp_path: Path) -> None:
    _C.start_recording(str(tmp_path / "missing" / "file"), 1 << 20)
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as comm:
        comm.all_reduce(np.ones(4))
    with pytest.raises(FileNotFoundError, match="missing/file") as caught:
        _C.stop_recording()
    assert "No such file" not in caught.value.filename
    with pytest.raises(ValueError, match="recording: none is running"):
        _C.stop_recording()


@on_ranks(2, fresh=True)
def test_a_hanging_operation_is_recorded(rank: Rank, tmp_path: Path) -> None:
    """An operation that does not return is in the recording."""
    path = str(tmp_path / "hang.rec")
    comm = rank.communicator()
    x = np.ones(4, np.float32)
    comm.all_reduce(x)
    _C.set_process_rank(rank.rank)
    _C.start_recording(path, 1 << 20)
    comm.all_reduce(x)
    if rank.rank == 0:
        with pytest.raises(nccl.NcclError):
            comm.broadcast(x, 1)
    else:
        deadline = time.monotonic() + 20
        mine = Path(path.replace(".rec", ".0.rec"))
        while not mine.exists() or len(chrome.load(mine)[0].operations) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [o.kind for o in chrome.load(mine)[0].operations] == ["all_reduce", "broadcast"]
        comm.abort()
    name = _C.stop_recording()
    if rank.rank == 0:
        assert [o.failed for o in chrome.load(name)[0].operations] == [False, True]


def test_invalid_recordings() -> None:
    for data in (b"", b"pynccl", b"pynccl trace 1", b"pynccl trace 2\n"):
        with pytest.raises(TraceError, match="it has no 'pynccl trace 1'"):
            recording.parse(data)
    for data in (b"", b"X\0\0\0\0\0\0\0", b"H\0\0\0\2\0\0\0{}", b"H\0\0\0\1\0\0\0{"):
        with pytest.raises(TraceError):
            recording.parse(b"pynccl trace 1\n" + data)


def test_a_recording_may_end_anywhere() -> None:
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0) as comm:
        _C.start_trace(1000, False)
        for _ in range(3):
            comm.all_reduce(np.ones(1, np.float32))
        data = _C.stop_trace(1.0)
    counts = []
    for size in range(len(data)):
        try:
            counts.append(len(recording.parse(data[:size]).operations))
        except TraceError:
            counts.append(-1)
    assert counts == sorted(counts)
    assert set(counts) == {-1, 0, 1, 2, 3}
