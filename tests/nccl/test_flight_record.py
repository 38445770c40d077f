"""Proves the contents of the flight record: every operation in order with its arguments and state,
the last 512 of them, and a fingerprint that differs if ranks have called different collectives. It
is written to a file on request, when a communicator fails, and on SIGUSR2 while the main thread
waits; and the files of real ranks identify the missing rank.
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
from pynccl.flight.dump import Dump, load
from tests.nccl.test_life import carry
from tests.support.blocking import wait_until, when_blocked
from tests.support.commands import ROOT, run_command, run_python
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for
from tests.support.ranks import on_ranks

_ABSENT, _RECORDS = 1, 512


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Variables of ranks that write their files to the folder of the test."""
    return {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_"}


def _call_all(rank: Rank, folder: str) -> list[int]:
    comm, memory, peer = rank.comm, rank.memory, 1 - rank.rank
    one, other = memory.put(np.ones(6, np.float32)), memory.put(np.ones(6, np.float32))
    both, out = memory.put(np.ones(12, np.float32)), memory.put(np.ones(12, np.float32))
    stream = rank.stream()
    began, began_ns = time.monotonic(), time.time_ns()
    comm.all_reduce(one, nccl.MAX, stream=stream)
    comm.broadcast(one, 1, stream=stream)
    comm.reduce(one, 1, stream=stream)
    comm.all_gather(one, out=both, stream=stream)
    comm.reduce_scatter(both, out=one, stream=stream)
    comm.all_to_all(both, out=out, stream=stream)
    with nccl.group():
        comm.send(one, peer, stream=stream)
        comm.recv(other, peer, stream=stream)
    with nccl.plan() as step:
        comm.all_reduce(one, stream=stream)
    step()
    comm.send(one, 1, stream=stream) if rank.rank == 0 else comm.recv(one, 0, stream=stream)
    stream.synchronize()
    ended = time.monotonic()
    records = comm.flight_record()
    last = ("recv", "send")[rank.rank == 0]
    collectives = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
    names = [*collectives, "all_to_all", "send", "recv", "all_reduce", last]
    numbers = [*range(1, 7), 1, 1, 7, 2]
    assert [record.operation for record in records] == names
    assert [record.sequence for record in records] == list(range(1, 11))
    assert [record.number for record in records] == numbers
    assert {(record.dtype, record.count) for record in records} == {("float32", 6)}
    assert [record.root_or_peer for record in records[1:3]] == [1, 1]
    assert {record.root_or_peer for record in records[6:8]} == {peer}
    assert {record.stream for record in records} == {stream.handle}
    assert all(began - 0.05 <= record.issued <= ended for record in records)
    assert {record.state for record in records} <= {"issued", "done"}
    assert "all_reduce #1 (float32, count=6, max)" in repr(records[0])
    dump = load(nccl.dump_flight_record(f"{folder}/dump_{rank.rank}"))
    assert (dump.host, dump.pid) == (socket.gethostname(), os.getpid())
    (dumped,) = dump.communicators
    assert (dumped.rank, dumped.nranks, dumped.collectives) == (rank.rank, 2, 7)
    peers = [one.peer for one in dumped.records]
    assert peers[:6] == [None] * 6
    assert peers[6:] == [peer, peer, None, peer]
    assert [
        (one.operation, one.sequence, one.number, one.count, int(one.fingerprint, 16))
        for one in dumped.records
    ] == [(one.operation, one.sequence, one.number, 6, one.fingerprint) for one in records]
    first = dumped.records[0]
    assert began_ns - 50_000_000 < first.time_created_ns < time.time_ns()
    assert abs(records[0].time_created_ns - first.time_created_ns) < 1e9
    assert (first.op, dumped.records[1].root) == ("max", 1)
    assert list(nccl.flight_record()) == [comm]
    return [record.fingerprint for record in records]


def test_every_operation_is_recorded_and_dumped(
    launch: Launcher, provider: str, tmp_path: Path
) -> None:
    # Fresh: reused processes may have communicators of other tests that are not freed yet.
    first, second = launch(2, _call_all, str(tmp_path), provider=provider, fresh=True)
    assert first == second
    assert first[5] == first[6] == first[7]  # messages are not part of it
    assert len(set(first)) == 7
    dumps = [load(str(tmp_path / f"dump_{rank}")) for rank in range(2)]
    assert dumps[0].communicators[0].id == dumps[1].communicators[0].id
    assert not any(f.kind != "stuck" for f in analyse(dumps).findings)


def _fingerprint(calls: list[tuple[str, int, int]]) -> int:
    with nccl.Communicator.init_all(1, provider="host")[0] as comm:
        for name, count, dtype in calls:
            getattr(comm, name)(np.zeros(count, f"f{dtype}"), *([0] if name == "broadcast" else []))
        return comm.flight_record()[-1].fingerprint


def test_the_fingerprint_depends_on_kind_count_dtype_and_order() -> None:
    calls = [("all_reduce", 4, 4), ("broadcast", 4, 4), ("all_reduce", 8, 4)]
    same = [calls, list(calls)]
    other = [
        calls[::-1],
        [calls[0], calls[2], calls[1]],
        [calls[0], calls[0], calls[2]],
        [calls[0], calls[1], ("all_reduce", 9, 4)],
        [calls[0], calls[1], ("all_reduce", 8, 8)],
        [*calls, calls[0]],
    ]
    assert len({_fingerprint(one) for one in same}) == 1
    assert len({_fingerprint(one) for one in [calls, *other]}) == 1 + len(other)


def test_the_last_512_are_kept(comm: nccl.Communicator) -> None:
    array = np.zeros(1)
    for _ in range(3 * _RECORDS + 7):
        comm.all_reduce(array)
    records = comm.flight_record()
    assert [record.sequence for record in records] == list(
        range(2 * _RECORDS + 8, 3 * _RECORDS + 8)
    )
    comm.close()
    assert len(comm.flight_record()) == _RECORDS


def test_a_blocked_call_is_seen_from_another_thread(pair: list[nccl.Communicator]) -> None:
    thread = threading.Thread(target=pair[0].all_reduce, args=[np.ones(4)])
    thread.start()
    wait_until(pair[0].flight_record)
    assert pair[0].flight_record()[0].state == "called"
    pair[1].all_reduce(np.ones(4))
    thread.join()
    assert pair[0].flight_record()[0].state == "done"


def test_operations_before_a_returned_call_are_done(comm: nccl.Communicator) -> None:
    """On CPUs, where they run in order on any streams."""
    stream, array, blocked = nccl.Stream("host"), np.ones(4), threading.Event()

    def states() -> list[str]:
        return [record.state for record in comm.flight_record()]

    stream.launch(blocked.wait)
    for _ in range(3):
        comm.all_reduce(array, stream=stream)
    thread = threading.Thread(target=comm.all_reduce, args=[array])
    thread.start()
    wait_until(lambda: len(states()) == 4)
    assert states() == 3 * ["issued"] + ["called"]
    blocked.set()
    thread.join()
    assert states() == 4 * ["done"]
    blocked.clear()
    stream.launch(blocked.wait)
    comm.all_reduce(array, stream=stream)
    assert states() == [*(4 * ["done"]), "issued"]
    blocked.set()
    stream.synchronize()


def test_a_failed_call_is_recorded_as_failed(pair: list[nccl.Communicator]) -> None:
    pair[1].abort()
    with pytest.raises(nccl.NcclRemoteError):
        pair[0].all_reduce(np.ones(4))
    assert pair[0].flight_record()[0].state == "failed"
    with pytest.raises(TypeError):
        pair[0].all_reduce("no tensor")
    assert len(pair[0].flight_record()) == 1  # nothing was issued


def test_records_can_be_read_during_writes(comm: nccl.Communicator) -> None:
    stop = threading.Event()

    def write() -> None:
        counts = [np.zeros(n, np.uint8) for n in range(1, 50)]
        while not stop.is_set():
            for array in counts:
                comm.all_reduce(array)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(200):
        for record in comm.flight_record():
            assert record.operation == "all_reduce"
            assert record.count == (record.sequence - 1) % 49 + 1
    stop.set()
    thread.join()


# Dumps


def _ids(communicators: list[nccl.Communicator]) -> list[str]:
    """The ids in a dump of this process, while these communicators are open."""
    assert communicators
    text = _C.flight_dump_json("a test")
    return [one["id"] for one in json.loads(text)["communicators"]]


def _make_children(rank: Rank) -> tuple[list[str], list[str]]:
    """The ids of the communicator, borrowed ones and children, and of open children of the same
    ranks after another one was closed.
    """
    comm = rank.comm
    children = [
        nccl.Communicator.borrow(comm),
        nccl.Communicator.borrow(comm),
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
    children[5].close()
    with second, comm.shrink([2]) as third:
        return ids, _ids([second, third])[-2:]


def test_children_have_the_same_id_on_all_ranks(launch: Launcher) -> None:
    ids, shrunk = zip(*launch(3, _make_children), strict=True)
    assert shrunk[0] == shrunk[1]
    assert len(set(shrunk[0])) == 2
    assert ids[0][:4] == ids[1][:4] == ids[2][:4]
    assert ids[0][4] == ids[2][4] != ids[1][4]  # the colors 0, 1, 0
    assert ids[0][5:7] == ids[1][5:]
    assert [ids[0][5], ids[0][7]] == ids[2][5:]
    assert len(set(ids[0])) == 8


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
    ids = launch(2, _recover)
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
    launch(3, _grow, str(tmp_path), ids=2)
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


def test_a_timeout_writes_the_file(
    launch: Launcher, provider: str, tmp_path: Path, env: dict[str, str]
) -> None:
    """The dumps of all ranks identify the rank that skipped a call."""
    launch.outcomes(3, _skip_a_call, provider=provider, env=env)
    dumps = _load_all(tmp_path, 3)
    assert any("did not complete within 1 s" in dump.reason for dump in dumps), dumps
    (finding,) = analyse(dumps).findings
    assert (finding.kind, finding.ranks, finding.number) == ("behind", [_ABSENT], 4)
    assert "rank 1 has not issued #4 all_reduce(float32, count=1000, sum)" in finding.text
    assert "its last is #3, done; ranks 0, 2 wait in it for" in finding.text or provider == "host"


def _wait_in_the_main_thread(rank: Rank) -> None:
    os.environ["RANK"] = str(rank.rank)
    comm, array = rank.comm, np.ones(1000, np.float32)
    comm.all_reduce(array)
    if rank.rank != _ABSENT:
        when_blocked(lambda: rank.report("waits"))
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


def test_the_mirrors_groups_have_names_and_ranks(
    launch: Launcher, tmp_path: Path, env: dict[str, str]
) -> None:
    url = f"file://{tmp_path}/store"
    launch(3, run_in_world, _in_world, url, {}, (str(tmp_path),), env=env)


def test_sigusr2_writes_the_file_while_the_main_thread_waits(
    launch: Launcher, tmp_path: Path, env: dict[str, str]
) -> None:
    """The wait and the program continue."""

    def ask(run: Run) -> None:
        run.gather_reports()
        for rank in range(3):
            run.kill(rank, signal.SIGUSR2)
            wait_for(f"{tmp_path}/flight_{rank}")

    outcomes = launch.outcomes(3, _wait_in_the_main_thread, while_running=ask, env=env)
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
    tmp_path: Path, env: dict[str, str], before: str, after: str, printed: str
) -> None:
    script = _SIGNAL.format(before=before, after=after, path=str(tmp_path / "flight_3"))
    done = run_python("-W", "ignore", "-c", script, RANK="3", PYNCCL_PROVIDER="host", **env)
    assert printed in done.stdout + done.stderr, done


def test_without_the_variable_sigusr2_ends_the_process() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYNCCL_FLIGHT_FILE"}
    script = _SIGNAL.format(before="", after="", path="/nowhere")
    done = run_command([sys.executable, "-c", script], ROOT, env, timeout=60)
    assert done.returncode == -signal.SIGUSR2, done


@on_ranks(2, by="env")
def test_another_ranks_end_writes_the_file_once(rank: Rank) -> None:
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
