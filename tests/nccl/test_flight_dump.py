"""Proves that the flight record is written to a file on request, when a communicator fails, and on
SIGUSR2 while the main thread waits; and that the files of real ranks identify the missing rank.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pynccl import _C, nccl
from pynccl.flight.analysis import analyse
from pynccl.flight.dump import Communicator, Dump, load
from tests.nccl.test_life import carry
from tests.support.blocking import wait_until, wait_until_blocked
from tests.support.commands import ROOT, run_command, run_python
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for

_ABSENT = 1


def _facts(communicator: Communicator) -> list[tuple[object, ...]]:
    return [(r.sequence, r.operation, r.number, r.count, r.peer) for r in communicator.records]


def _dump_all_kinds(rank: Rank, folder: str) -> None:
    comm, memory, stream = rank.comm, rank.memory, rank.stream()
    one, other = memory.put(np.ones(6, np.float32)), memory.put(np.ones(6, np.float32))
    before = time.time_ns()
    comm.all_reduce(one, nccl.MAX, stream=stream)
    with nccl.group():
        comm.send(one, 1 - rank.rank, stream=stream)
        comm.recv(other, 1 - rank.rank, stream=stream)
    comm.broadcast(one, 1, stream=stream)
    comm.send(one, 1, stream=stream) if rank.rank == 0 else comm.recv(one, 0, stream=stream)
    stream.synchronize()
    path = nccl.dump_flight_record(f"{folder}/dump_{rank.rank}")
    dump = load(path)
    assert (dump.host, dump.pid) == (socket.gethostname(), os.getpid())
    (dumped,) = dump.communicators
    peer = 1 - rank.rank
    last = ("send", 2) if rank.rank == 0 else ("recv", 2)
    assert _facts(dumped) == [
        (1, "all_reduce", 1, 6, None),
        (2, "send", 1, 6, peer),
        (3, "recv", 1, 6, peer),
        (4, "broadcast", 2, 6, None),
        (5, *last, 6, peer),
    ]
    assert (dumped.rank, dumped.nranks, dumped.collectives) == (rank.rank, 2, 2)
    first = dumped.records[0]
    assert before - 50_000_000 < first.time_created_ns < time.time_ns()
    assert (first.op, dumped.records[3].root) == ("max", 1)
    seen = nccl.flight_record()
    assert list(seen) == [comm]
    assert [(r.number, r.fingerprint) for r in seen[comm]] == [
        (r.number, int(r.fingerprint, 16)) for r in dumped.records
    ]
    assert abs(seen[comm][0].time_created_ns - first.time_created_ns) < 1e9


def test_the_dump_lists_the_calls(launch: Launcher, provider: str, tmp_path: Path) -> None:
    # Fresh: reused processes may have communicators of other tests that are not freed yet.
    launch(2, _dump_all_kinds, str(tmp_path), provider=provider, timeout=60, fresh=True)
    dumps = [load(str(tmp_path / f"dump_{rank}")) for rank in range(2)]
    assert dumps[0].communicators[0].id == dumps[1].communicators[0].id
    assert not any(f.kind != "stuck" for f in analyse(dumps).findings)


def _ids(communicators: list[nccl.Communicator]) -> list[str]:
    """The ids in a dump of this process, while these communicators are open."""
    assert communicators
    text = _C.flight_dump_json("a test")
    return [one["id"] for one in json.loads(text)["communicators"]]


def _make_children(rank: Rank) -> tuple[list[str], list[str]]:
    """The ids of children, and of open ones of the same ranks after another one was closed."""
    comm = rank.comm
    children = [
        comm.split(0, -rank.rank),
        comm.split(rank.rank % 2),
        comm.split(0),
        comm.shrink([2]) if rank.rank != 2 else comm,
        comm.shrink([1]) if rank.rank != 1 else comm,
    ]
    ids = _ids(children)
    if rank.rank == 2:
        return ids, []
    second = comm.shrink([2])
    children[3].close()
    with second, comm.shrink([2]) as third:
        return ids, _ids([second, third])[-2:]


def test_children_have_the_same_id_on_all_ranks(launch: Launcher) -> None:
    ids, shrunk = zip(*launch(3, _make_children, timeout=60), strict=True)
    assert shrunk[0] == shrunk[1]
    assert len(set(shrunk[0])) == 2
    assert ids[0][:2] == ids[1][:2] == ids[2][:2]
    assert ids[0][2] == ids[2][2] != ids[1][2]  # the colors 0, 1, 0
    assert ids[0][3:5] == ids[1][3:]
    assert [ids[0][3], ids[0][5]] == ids[2][3:]
    assert len(set(ids[0])) == 6


def _borrow_twice(rank: Rank) -> list[str]:
    return _ids([nccl.Communicator.borrow(rank.comm), nccl.Communicator.borrow(rank.comm)])


def test_borrowers_have_the_same_id_on_all_ranks(launch: Launcher) -> None:
    ids = launch(2, _borrow_twice, timeout=60)
    assert ids[0][-3:] == ids[1][-3:]
    assert len(set(ids[0][-3:])) == 3


def _recover(rank: Rank) -> list[list[str]]:
    """After a split called by one rank alone."""
    comm, ids = rank.comm, []
    if rank.rank == 0:
        with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)):
            comm.split(0, config=nccl.Config(init_timeout=0.2))
    for _ in range(2):
        comm = comm.recover(10)
        ids.append(_ids([comm]))
    comm.close()
    return ids


def test_recovered_communicators_have_the_same_id_on_all_ranks(launch: Launcher) -> None:
    ids = launch(2, _recover, timeout=60)
    assert ids[0] == ids[1]
    assert ids[0][0] != ids[0][1]


def _grow(rank: Rank, folder: str) -> None:
    carry(rank, None)  # the world's own communicator, which carries the id
    if rank.rank < 2:
        comm = nccl.Communicator(2, rank.unique_ids[1], rank.rank, provider="host")
        unique_id = comm.get_unique_id() if rank.rank == 1 else None
        carry(rank, None if unique_id is None else bytes(unique_id), 1)
        grown = comm.grow(3, unique_id)
    else:
        grown = nccl.Communicator.join(3, carry(rank, None, 1), 2, provider="host")
    grown.all_reduce(np.ones(4))
    if rank.rank < 2:
        grown.all_reduce(np.ones(4), stream=(stream := rank.stream()))
    nccl.dump_flight_record(f"{folder}/flight_{rank.rank}")
    rank.comm.all_reduce(np.ones(1))  # all have written
    if rank.rank == 2:
        grown.all_reduce(np.ones(4))
    else:
        stream.synchronize()


def test_the_ranks_of_a_grown_communicator_are_merged(launch: Launcher, tmp_path: Path) -> None:
    launch(3, _grow, str(tmp_path), ids=2, timeout=60)
    findings = analyse(_load_all(tmp_path, 3)).findings
    assert [(f.kind, f.ranks, f.waiting) for f in findings if f.number == 2] == [
        ("behind", [2], [0, 1])
    ]


def test_communicators_of_one_process(
    pair: list[nccl.Communicator], comm: nccl.Communicator
) -> None:
    ids = _ids(pair)[-3:]
    assert ids[0] == ids[1] != ids[2]
    opened = [*pair, comm]
    assert list(nccl.flight_record())[-3:] == opened
    for one in opened:
        one.close()
    assert not set(nccl.flight_record()) & set(opened)


def test_the_path_and_the_format_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYNCCL_FLIGHT_FILE", raising=False)
    with pytest.raises(ValueError, match="path: None requires PYNCCL_FLIGHT_FILE, "):
        nccl.dump_flight_record()
    with pytest.raises(FileNotFoundError, match="none/dump"):
        nccl.dump_flight_record(tmp_path / "none" / "dump")
    monkeypatch.setenv("PYNCCL_FLIGHT_FILE", str(tmp_path / "flight_"))
    monkeypatch.delenv("RANK", raising=False)
    assert nccl.dump_flight_record() == str(tmp_path / f"flight_pid{os.getpid()}")
    monkeypatch.setenv("RANK", "17th")
    assert nccl.dump_flight_record() == str(tmp_path / f"flight_pid{os.getpid()}")
    monkeypatch.setenv("RANK", "17")
    assert nccl.dump_flight_record() == str(tmp_path / "flight_17")
    assert load(str(tmp_path / "flight_17")).rank == 17
    assert sorted(os.listdir(tmp_path)) == ["flight_17", f"flight_pid{os.getpid()}"]


def _skip_a_call(rank: Rank) -> None:
    os.environ["RANK"] = str(rank.rank)
    comm, stream = rank.comm, rank.stream()
    buffer = rank.memory.put(np.ones(1000, np.float32))
    for _ in range(3):
        comm.all_reduce(buffer, stream=stream)
    stream.synchronize()
    comm.timeout = 1
    if rank.rank == _ABSENT:
        time.sleep(0.5)
        nccl.dump_flight_record()
        for other in range(rank.nranks):
            wait_for(f"{os.environ['PYNCCL_FLIGHT_FILE']}{other}")
        return
    own = Path(f"{os.environ['PYNCCL_FLIGHT_FILE']}{rank.rank}")
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)):  # noqa: PT012
        comm.all_reduce(buffer, stream=stream)
        if rank.provider == "cuda":  # before a wait raises, which may end the process
            wait_until(lambda: comm.expired)
            assert own.exists()
        stream.synchronize()
        if error := comm.async_error():
            raise error
    assert own.exists()


def _load_all(folder: Path, nranks: int) -> list[Dump]:
    assert sorted(os.listdir(folder)) == [f"flight_{rank}" for rank in range(nranks)]
    return [load(str(folder / f"flight_{rank}")) for rank in range(nranks)]


def test_a_timeout_writes_the_file(launch: Launcher, provider: str, tmp_path: Path) -> None:
    """The dumps of all ranks identify the rank that skipped a call."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    env = {"PYNCCL_FLIGHT_FILE": f"{folder}/flight_"}
    launch.outcomes(3, _skip_a_call, provider=provider, env=env, timeout=60)
    dumps = _load_all(folder, 3)
    assert any("did not complete within 1 s" in dump.reason for dump in dumps), dumps
    (finding,) = analyse(dumps).findings
    assert (finding.kind, finding.ranks, finding.number) == ("behind", [_ABSENT], 4)
    assert "rank 1 has not issued #4 all_reduce(float32, count=1000, sum)" in finding.text
    assert "its last is #3, done; ranks 0, 2 wait in it for" in finding.text or provider == "host"


def _wait_in_the_main_thread(rank: Rank) -> None:
    os.environ["RANK"] = str(rank.rank)
    comm, array = rank.comm, np.ones(1000, np.float32)
    comm.all_reduce(array)

    def report() -> None:
        wait_until_blocked(threading.main_thread())
        rank.report("waits")

    if rank.rank != _ABSENT:
        threading.Thread(target=report).start()
    else:
        rank.report("waits")
        for other in range(rank.nranks):
            wait_for(f"{os.environ['PYNCCL_FLIGHT_FILE']}{other}")
    comm.all_reduce(array)


def _in_world(dist: ModuleType, rank: int, nranks: int, folder: str) -> None:
    import torch

    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    pair = dist.new_group([0, 1], group_desc="tensor parallel")
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    dist.barrier()
    path = nccl.dump_flight_record()
    assert path == f"{folder}/flight_{rank}"
    dist.barrier()
    found = analyse([load(f"{folder}/flight_{other}") for other in range(nranks)])
    assert "communicator 'default_pg'" in found.text()
    assert "communicator 'tensor parallel'" in found.text()
    dist.destroy_process_group()  # its rank was part of the file name
    os.environ.pop("RANK", None)
    assert nccl.dump_flight_record() == f"{folder}/flight_pid{os.getpid()}"


def test_the_mirrors_groups_have_names_and_ranks(launch: Launcher, tmp_path: Path) -> None:
    url, env = f"file://{tmp_path}/store", {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_"}
    launch(3, run_in_world, _in_world, url, {}, (str(tmp_path),), env=env, timeout=60)


def test_sigusr2_writes_the_file_while_the_main_thread_waits(
    launch: Launcher, tmp_path: Path
) -> None:
    """The wait and the program continue."""

    def ask(run: Run) -> None:
        run.gather_reports()
        for rank in range(3):
            run.kill(rank, signal.SIGUSR2)
            wait_for(f"{tmp_path}/flight_{rank}")

    env = {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_"}
    outcomes = launch.outcomes(3, _wait_in_the_main_thread, while_running=ask, env=env, timeout=60)
    assert all(outcome.ok for outcome in outcomes), outcomes
    (finding,) = analyse(_load_all(tmp_path, 3)).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("behind", [_ABSENT], [0, 2])
    assert "its last is #1, done" in finding.text


_SIGNAL = """
import os, signal, sys, time
{before}
from pynccl import nccl
{after}
os.kill(os.getpid(), signal.SIGUSR2)
end = time.monotonic() + 30
while not os.path.exists({path!r}) and time.monotonic() < end:
    time.sleep(0.01)
print("alive", os.path.exists({path!r}))
"""


@pytest.mark.parametrize(
    ("before", "after", "printed"),
    [
        ("", "", "alive True"),  # even before a communicator is created
        ("signal.signal(signal.SIGUSR2, lambda *_: sys.exit('mine'))", "", "mine"),
        ("", "signal.signal(signal.SIGUSR2, lambda *_: sys.exit('mine'))", "mine"),
        # A child inherits the handler, and starts a thread when it creates a communicator.
        ("", "if os.fork(): sys.exit(os.wait()[1])\nnccl.Communicator.init_all(1)", "alive True"),
    ],
)
def test_a_handler_of_the_program_is_kept(
    tmp_path: Path, before: str, after: str, printed: str
) -> None:
    path = str(tmp_path / "flight_3")
    script = _SIGNAL.format(before=before, after=after, path=path)
    env = {"PYNCCL_FLIGHT_FILE": str(tmp_path / "flight_"), "PYNCCL_PROVIDER": "host"}
    done = run_python("-W", "ignore", "-c", script, RANK="3", **env)
    assert printed in done.stdout + done.stderr, done


def test_without_the_variable_sigusr2_ends_the_process() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYNCCL_FLIGHT_FILE"}
    script = _SIGNAL.format(before="", after="", path="/nowhere")
    done = run_command([sys.executable, "-c", script], ROOT, env, timeout=60)
    assert done.returncode == -signal.SIGUSR2, done


def _refuse_and_fail(rank: Rank) -> None:
    os.environ["RANK"] = str(rank.rank)
    comm = rank.comm
    with pytest.raises(TypeError):
        comm.all_reduce("no tensor")
    assert not os.path.exists(_C.flight_dump_path() or "")
    comm.all_reduce(np.ones(4))
    if rank.rank == 0:
        comm.abort()
        return
    with pytest.raises(nccl.NcclRemoteError):
        comm.all_reduce(np.ones(4))
    path = Path(_C.flight_dump_path() or "")
    assert "ncclAllReduce failed" in (load(str(path)).communicators[0].failure or "")
    path.unlink()
    with pytest.raises(nccl.NcclError):
        comm.all_reduce(np.ones(4))
    assert not path.exists()  # once per communicator


def test_another_ranks_end_writes_the_file_once(launch: Launcher, tmp_path: Path) -> None:
    env = {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_"}
    launch(2, _refuse_and_fail, env=env, timeout=60)


def test_a_failure_to_write_the_file_is_reported_on_stderr() -> None:
    script = """
import numpy as np
from pynccl import nccl
comms = nccl.Communicator.init_all(2, provider="host")
comms[0].timeout = 0.2
try:
    comms[0].all_reduce(np.ones(4))
except nccl.NcclTimeoutError:
    print("raised", flush=True)
"""
    done = run_python("-W", "ignore", "-c", script, PYNCCL_FLIGHT_FILE="/nowhere/flight_")
    assert done.stdout == "raised\n", done
    assert "pynccl: the flight record was not written: /nowhere/flight_" in done.stderr
