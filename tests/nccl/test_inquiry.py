"""Proves that the error of an expired operation names the missing ranks, which the ranks determine
through a store: the contents of the store, the texts, and that the error does not wait for missing
answers.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import _C, nccl
from pynccl._internal import inquiry
from pynccl.flight.dump import Dump, parse
from pynccl.flight.missing import Missing, find_missing, shortened
from tests.nccl.test_life import check_works
from tests.support import gpu, warm
from tests.support.blocking import in_threads, wait_until
from tests.support.commands import free_port, run_python
from tests.support.flight_dumps import communicator, dump, dump_json, record
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for
from tests.support.ranks import on_ranks
from tests.support.store import FolderStore

pytestmark = pytest.mark.long

_LIMIT = 0.6  # seconds; a wait that ignores it ends with the launch
_ABSENT = 1


class _Caller:
    """The calls of a rank, on its own buffers."""

    def __init__(self, rank: Rank, comm: nccl.Communicator) -> None:
        self.rank, self.comm, self.stream = rank.rank, comm, rank.stream()
        self.small, self.received, self.large = (
            rank.memory.put(np.ones(n, np.float32)) for n in (4, 4, 8)
        )

    def all_reduce(self) -> None:
        self.comm.all_reduce(self.small, stream=self.stream)

    def broadcast(self) -> None:
        self.comm.broadcast(self.small, 0, stream=self.stream)

    def send(self, peer: int) -> None:
        self.comm.send(self.small, peer, stream=self.stream)

    def recv(self, peer: int) -> None:
        self.comm.recv(self.received, peer, stream=self.stream)

    def exchange(self, peer: int) -> None:
        with nccl.group():
            self.send(peer)
            self.recv(peer)

    def wait(self) -> None:
        self.stream.synchronize()
        if error := self.comm.async_error():
            raise error


def _loop(skipped: int) -> Callable[[_Caller], None]:
    """Ten equal calls, of which one rank skips one."""

    def act(caller: _Caller) -> None:
        for step in range(10):
            if caller.rank != _ABSENT or step != skipped:
                caller.all_reduce()

    return act


def _absent(act: Callable[[_Caller], object]) -> Callable[[_Caller], object]:
    return lambda caller: act(caller) if caller.rank != _ABSENT else None


# The calls of the ranks, and the text of the error on those that wait.
_MISSING: dict[str, tuple[Callable[[_Caller], object], str]] = {
    "collective": (
        _absent(_Caller.all_reduce),
        r"rank 1 has not issued #2 all_reduce\(float32, count=4, sum\); its last is #1, done",
    ),
    "loop": (_loop(3), r"rank 1 has not issued #11 all_reduce.*; its last is #10"),
    "recv": (
        _absent(lambda caller: caller.recv(_ABSENT)),
        r"recv #1\(float32, count=4, peer=1\) of rank . from rank 1 has no send",
    ),
    "group": (
        _absent(lambda caller: caller.exchange(_ABSENT)),
        r"recv #1\(.*\) of rank . from rank 1 has no send: rank 1 has called 0 to rank",
    ),
    "split": (
        _absent(lambda caller: caller.comm.split(0)),
        r"ranks 0, 2 are in ncclCommSplit for .*; rank 1 is not",
    ),
}


def _act_and_wait(act: Callable[[_Caller], object], caller: _Caller) -> None:
    act(caller)
    caller.wait()


def _wait_for_the_absent(rank: Rank, what: str, folder: str) -> str:
    """Whose limit expired first: "own" or "other's". On a busy machine: "late" if one of the two
    had not called yet at the first question, or "unanswered".
    """
    if what == "split":  # an older NCCL aborts, which takes longer
        gpu.require(rank.provider, "ncclCommRevoke")
    comm = rank.communicator(0, store=FolderStore(folder))
    caller = _Caller(rank, comm)
    caller.all_reduce()
    caller.wait()
    comm.timeout = _LIMIT
    act, text = _MISSING[what]
    if rank.rank == _ABSENT:
        act(caller)
        rank.wait_event("done", 0, 2)
        comm.abort()
        return ""
    rank.set_event("begins")
    rank.wait_event("begins", 0, 2)
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)) as raised:
        _act_and_wait(act, caller)
    error = raised.value
    whose = "own" if isinstance(error, nccl.NcclTimeoutError) else "other's"
    if "has not answered" in str(error):
        whose = "unanswered"
    elif isinstance(error, nccl.NcclTimeoutError) and {0, 2} & {*(error.missing_ranks or [])}:
        whose = "late"
    if isinstance(error, nccl.NcclTimeoutError) and whose == "own":
        raised.match(text)
        assert (error.missing_ranks, error.missing_source) == ([_ABSENT], "store"), str(error)
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.missing_ranks) == (str(error), [_ABSENT])
    comm.timeout = 30
    with comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0, 2])
    rank.set_event("done")
    comm.close()
    return whose


@pytest.mark.parametrize("what", _MISSING)
def test_the_missing_rank_is_named(
    launch: Launcher, provider: str, what: str, tmp_path: Path
) -> None:
    for attempt in "123":
        folder = tmp_path / attempt
        folder.mkdir()
        whose = launch(3, _wait_for_the_absent, what, str(folder), provider=provider, timeout=40)
        if not {"late", "unanswered"} & {*whose}:
            break
    assert "own" in whose
    assert not {"late", "unanswered"} & {*whose}


def test_a_question_before_the_first_poll_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    for number in range(1, 20):
        store.add("pynccl/questions", 1)
        store.set(f"pynccl/question/{number}", "a communicator")
    monkeypatch.setattr(_C, "members", lambda: [(store, "a communicator", None, 0)])
    monkeypatch.setattr("pynccl.flight.missing.shortened", lambda *_: "a dump")
    inquiry._Questions(store).answer()
    assert store.check(["pynccl/answer/19/0"])
    assert not store.check(["pynccl/answer/1/0"])  # an old question


def _dumps(of_ranks: dict[int, list[dict[str, object]]], **fields: object) -> list[Dump]:
    return [dump(rank, communicator(rank, 4, ops, **fields)) for rank, ops in of_ranks.items()]


_COMM = "a" * 16
_DONE, _WAITS = record("all_reduce"), record("all_reduce", "issued", age=3)


@pytest.mark.parametrize(
    ("of_ranks", "ranks", "text"),
    [
        ({0: [_WAITS], 1: [], 2: [_WAITS], 3: [_WAITS]}, [1], "rank 1 has not issued #1 "),
        ({0: [_WAITS], 1: [], 3: [_WAITS]}, [1, 2], "rank 2 has not answered: the process"),
        ({0: [_WAITS], 1: [_WAITS], 2: [_WAITS], 3: [_WAITS]}, [], "all ranks have issued #1"),
        # A message involves its peer only.
        ({0: [record("recv", "issued", peer=1)], 1: []}, [1], "has no send: rank 1 has called 0"),
        ({0: [record("recv", "issued", peer=2)], 1: []}, [2], "rank 2 has not answered"),
    ],
)
def test_for_which_ranks_a_rank_waits(
    of_ranks: dict[int, list[dict[str, object]]], ranks: list[int], text: str
) -> None:
    missing = find_missing(_COMM, 0, 4, _dumps(of_ranks))
    assert missing.ranks == ranks
    assert re.search(text, missing.text), missing.text


def test_a_communicator_without_waits_has_no_missing_rank() -> None:
    done = {rank: [_DONE] for rank in range(4)}
    assert find_missing(_COMM, 0, 4, _dumps(done)) == Missing("", None)


def test_an_answer_is_short() -> None:
    """The last records of the communicator in question, and pending ones of others."""
    many = [_DONE] * 100 + [record("send", peer=1)] * 100
    other = communicator(0, 2, [_DONE, _WAITS], id="b" * 16)
    text = dump_json(0, communicator(0, 2, many), other)
    asked, rest = parse(shortened(text, _COMM), "").communicators
    assert [one.sequence for one in asked.records] == [*range(37, 101), *range(137, 201)]
    assert [one.sequence for one in rest.records] == [2]


def _stopped(rank: Rank, folder: str) -> tuple[str, list[int] | None]:
    comm = rank.communicator(0, config=nccl.Config(timeout=30), store=FolderStore(folder))
    caller = _Caller(rank, comm)
    caller.all_reduce()
    caller.wait()
    comm.timeout = _LIMIT  # the first operation of a busy machine takes longer
    rank.report("ready")
    if rank.rank == 2:
        time.sleep(600)
    wait_for(f"{folder}/../stopped")
    with pytest.raises(nccl.NcclTimeoutError) as raised:
        _act_and_wait(_Caller.all_reduce, caller)
    Path(folder, "..", "raised").touch()
    comm.abort()
    return str(raised.value), raised.value.missing_ranks


def _stop_a_rank(launch: Launcher, provider: str, folder: Path) -> list[tuple[str, list[int]]]:
    (folder / "store").mkdir(parents=True)

    def stop(run: Run) -> None:
        run.gather_reports()
        run.kill(2, signal.SIGSTOP)
        (folder / "stopped").touch()
        wait_for(str(folder / "raised"))
        run.kill(2, signal.SIGKILL)

    outcomes = launch.outcomes(
        3, _stopped, str(folder / "store"), provider=provider, while_running=stop, timeout=120
    )
    results = [outcome.value for outcome in outcomes[:2] if outcome.ok]
    assert results, [outcome.trace for outcome in outcomes]
    return results


def test_a_stopped_rank_does_not_answer(launch: Launcher, provider: str, tmp_path: Path) -> None:
    """On a busy machine, the store is late for some of the errors."""
    text = "rank 2 has not answered: the process has ended, is stopped or busy"
    for attempt in range(10):
        results = _stop_a_rank(launch, provider, tmp_path / str(attempt))
        if all(text in error and missing == [2] for error, missing in results):
            return
    pytest.fail(str(results))


def test_an_exit_while_ranks_are_asked_is_silent(tmp_path: Path) -> None:
    script = """
import sys, threading, time
import numpy as np
from pynccl import nccl
from tests.support.store import FolderStore
uid = nccl.get_unique_id("host")
def make(rank):
    comm = nccl.Communicator(2, uid, rank, provider="host", store=FolderStore(sys.argv[1]))
    comm.timeout = 0.05
    comm.all_reduce(np.ones(4), stream=nccl.Stream("host")) if rank == 0 else time.sleep(60)
for rank in (0, 1): threading.Thread(target=make, args=[rank], daemon=True).start()
time.sleep(0.4)
"""
    done = run_python("-W", "ignore", "-c", script, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, ""), done


class _BlockingStore(FolderStore):
    """Blocks the thread that asks for the first time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def add(self, key: str, amount: int) -> int:
        if amount:
            self.asked.set()
            assert self.goes_on.wait(20)
        return super().add(key, amount)


def _in_threads(*calls: Callable[[], object]) -> Callable[[], list[object]]:
    """Begin calls. Returns a function that waits for them and returns their results or errors."""
    pool = ThreadPoolExecutor(len(calls))
    begun = [pool.submit(call) for call in calls]
    return lambda: [one.exception(timeout=30) or one.result() for one in begun]


def _communicators(store: FolderStore, *timeouts: float) -> list[nccl.Communicator]:
    """The ranks of a communicator with a store, each with its time limit."""
    unique_id = nccl.get_unique_id("host")

    def create(rank: int, seconds: float) -> nccl.Communicator:
        config = nccl.Config(timeout=seconds)
        return nccl.Communicator(
            len(timeouts), unique_id, rank, config=config, provider="host", store=store
        )

    return in_threads(*(partial(create, rank, limit) for rank, limit in enumerate(timeouts)))


def test_a_thread_that_holds_the_gil_does_not_delay_the_end(tmp_path: Path) -> None:
    comms = _communicators(FolderStore(tmp_path), 0.5, 0.5)
    waiting = _in_threads(partial(comms[0].all_reduce, np.ones(4)))
    wait_until(comms[0].flight_record)
    ctypes.PyDLL(None).usleep(3_000_000)  # holds the GIL
    assert comms[0].expired
    (error,) = waiting()
    assert isinstance(error, nccl.NcclTimeoutError)
    assert error.missing_ranks == [1]
    assert re.search(r"^all_reduce #1 .*waited for rank 1 in ncclAllReduce", str(error)), error
    for comm in comms:
        comm.abort()


def _late_twice(folder: Path) -> object:
    """The error of the second split, if the first one ended after the question about it."""
    store = _BlockingStore(folder)
    comms = _communicators(store, 0.5, 60, 60)
    first = _in_threads(*(partial(comms[rank].split, 0) for rank in (0, 1)))
    assert store.asked.wait(20)
    children: Any = [*_in_threads(partial(comms[2].split, 0))(), *first()]
    store.goes_on.set()
    time.sleep(0.5)  # until the answer that no rank waits
    error = None
    if not any(isinstance(child, Exception) for child in children):
        error, _ = _in_threads(*(partial(comms[rank].split, 0) for rank in (0, 2)))()
        for child in children:
            child.abort()
    for comm in comms:
        comm.abort()
    return error


def test_an_answer_is_about_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_FRESH", 0.0)
    attempts = (_late_twice(tmp_path / str(number)) for number in range(5))
    error = next(error for error in attempts if error is not None)  # None: the first has expired
    assert isinstance(error, nccl.NcclTimeoutError)
    assert re.search(r"ranks 0, 2 are in ncclCommSplit for .*; rank 1 is not", str(error)), error
    assert error.missing_ranks == [1]


def test_an_error_waits_for_a_slow_inquiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the thread that asks may take longer than two seconds."""
    monkeypatch.setattr(inquiry, "_PATIENCE", 3.5)
    add_answers = inquiry._Questions.add_answers
    monkeypatch.setattr(
        inquiry._Questions,
        "add_answers",
        lambda self, number, known, _: add_answers(self, number, known, 1),
    )
    comms = _communicators(FolderStore(tmp_path), 0.3, 0.3)
    with pytest.raises(nccl.NcclTimeoutError, match="rank 1 has not issued #1"):
        comms[0].all_reduce(np.ones(4))
    for comm in comms:
        comm.abort()


class _NotedStore(FolderStore):
    """Notes the processes that use it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.users: set[int] = set()

    def check(self, keys: list[str]) -> bool:
        self.users.add(os.getpid())
        return super().check(keys)

    def create(self) -> nccl.Communicator:
        """Create a communicator, and wait until its process uses the store."""
        (comm,) = _communicators(self, 60)
        wait_until(lambda: os.getpid() in self.users)
        return comm


@on_ranks(1, fresh=True)
def test_a_child_of_fork_does_not_use_the_stores_of_its_parent(rank: Rank, tmp_path: Path) -> None:
    store = _NotedStore(tmp_path / "parent")
    with store.create():
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            return
        uses = True
        try:
            _NotedStore(tmp_path / "child").create()
            uses = os.getpid() in store.users
        finally:
            os._exit(uses)


class _FailingStore(FolderStore):
    def check(self, keys: list[str]) -> bool:
        raise ConnectionError("the store is gone")


def _expire_without_a_store(folder: Path) -> float:
    """Returns the seconds until the error."""
    comms, stream = _communicators(_FailingStore(folder), 0.3, 0.3), nccl.Stream("host")
    began = time.monotonic()
    comms[0].all_reduce(np.ones(4), stream=stream)
    with pytest.raises(nccl.NcclTimeoutError, match="waited for rank 1 in") as raised:
        stream.synchronize()
    seconds = time.monotonic() - began
    for comm in comms:
        comm.abort()
    assert raised.value.missing_ranks == [1]  # known by hostnccl
    return seconds


def test_a_failing_store_does_not_delay_the_error(tmp_path: Path) -> None:
    """On a busy machine, one of ten attempts is in time."""
    assert any(_expire_without_a_store(tmp_path / str(attempt)) < 1.2 for attempt in range(10))


def _reduce_without(rank: Rank, known: bool) -> nccl.NcclTimeoutError | None:
    """Raise the error of an operation that a rank does not call, on a communicator without a store.

    ``known`` is whether the error names this rank.
    """
    comm = rank.communicator(0)
    caller = _Caller(rank, comm)
    caller.all_reduce()
    caller.wait()
    comm.timeout = _LIMIT
    error = None
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
    else:
        with pytest.raises(nccl.NcclTimeoutError) as raised:
            _act_and_wait(_Caller.all_reduce, caller)
        rank.set_event("done")
        error = raised.value
        assert error.missing_ranks == ([_ABSENT] if known else None), error
        assert ("the missing ranks are unknown" in str(error)) is not known
    comm.abort()
    return error


@on_ranks(2, by="provider", timeout=40, env={"NCCL_RAS_ENABLE": "0"})
def test_without_a_store_only_hostnccl_names_the_missing_rank(rank: Rank) -> None:
    _reduce_without(rank, known=rank.provider == "host")


@pytest.mark.gpu
@pytest.mark.needs_gpu("NCCL's RAS service answers")
def test_ras_names_the_missing_rank(launch: Launcher) -> None:
    env = {"NCCL_RAS_ADDR": f"localhost:{free_port()}"}  # other jobs run beside this one
    error, _ = launch(2, _reduce_without, True, provider="cuda", timeout=40, env=env)
    assert error.missing_source == "RAS", error


def test_the_store_is_checked() -> None:
    text = "store: expected an object with the methods of torch.distributed.Store, got 3"
    with pytest.raises(TypeError, match=text):
        nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host", store=3)


def test_the_thread_ends_with_the_last_communicator(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "pynccl-inquiry"]

    unique_id = nccl.get_unique_id("host")
    comm = nccl.Communicator(1, unique_id, 0, provider="host", store=FolderStore(tmp_path))
    with comm.split(0) as child:
        comm.close()
        time.sleep(1.2)
        assert len(threads()) == 1
        child.all_reduce(np.ones(3))
    wait_until(lambda: not threads())


# The thread is in a call of torch's store, without the GIL, when the interpreter ends.
_ENDS_IN_A_CALL = """
import threading, time
from datetime import timedelta
import torch
from pynccl import nccl

class Late:
    def __del__(self):
        time.sleep(1.5)  # the call returns before the process ends

late = Late()
called = threading.Event()

class Store:
    store = torch.distributed.TCPStore("localhost", 0, is_master=True)
    def set(self, key, value): self.store.set(key, value)
    def get(self, key): return self.store.get(key)
    def add(self, key, amount): return self.store.add(key, amount)
    def check(self, keys):
        if threading.current_thread().name == "pynccl-inquiry":
            called.set()
            try:
                self.store.wait(["never"], timedelta(seconds=0.5))
            except Exception:
                pass
        return self.store.check(keys)

store = Store()
comm = nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host", store=store)
assert called.wait(20)
"""


def test_the_process_ends_while_the_thread_calls_a_store() -> None:
    """Python before 3.14 ends the thread in the C++ of the store, which aborts the process."""
    done = run_python("-c", _ENDS_IN_A_CALL, popen=warm.WholePopen)
    assert done.returncode == 0, done.stderr


def test_sockets_of_the_process_stay_blocking() -> None:
    """Torch's store reads its socket without a time limit, and must not be given one."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("localhost", 0, is_master=True)
    store.set("key", "value")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        clone = inquiry.watcher.attach(store)
    finally:
        socket.setdefaulttimeout(before)
    assert [store.get("key"), clone.get("key")] == [b"value", b"value"]
    found = inquiry.watcher._connections[clone]
    assert len(found) == 1
    assert all(map(os.get_blocking, found))
