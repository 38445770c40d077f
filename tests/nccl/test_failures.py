"""Proves that every wait for failed work raises the exception class of the failure: each failure
and the own time limit, for each kind of wait.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support.blocking import Blocked, interrupt_when_blocked, wait_until
from tests.support.capsule import Report, open_capsule
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.long

_LIMIT = 2.0  # seconds, the own time limit: all work is enqueued within it
_FAILURES: dict[str, type[nccl.NcclError]] = {
    "peer died": nccl.NcclRemoteError,
    "peer closed": nccl.NcclRemoteError,
    "peer aborted": nccl.NcclRemoteError,
    "peer revoked": nccl.NcclRemoteError,
    "aborted": nccl.NcclInvalidUsageError,
    "revoked": nccl.NcclInvalidUsageError,
    "mismatch": nccl.NcclInvalidUsageError,
    "deadlock": nccl.NcclInvalidUsageError,
    "Ctrl-C": nccl.NcclRemoteError,
    "deadline": nccl.NcclTimeoutError,
}
# NCCL's kernels do not notice these on GPUs, so the own time limit ends them. Ctrl-C only ends the
# caller's wait there.
_LATE_ON_GPUS = tuple(set(_FAILURES) - {"aborted", "revoked"})
_PARTS = ("streams", "events", "waiting_streams", "graphs", "groups")
_STREAMS = 40  # at most, for all parts
_PROCESSES = ("peer died", "deadlock", "Ctrl-C")  # the others run in threads

Wait = Callable[[], object]


def _until_true(query: Callable[[], bool]) -> Callable[[], None]:
    return functools.partial(wait_until, query)


class _Waits:
    """All kinds of waits for an operation of rank 0 that will fail."""

    def __init__(self, rank: Rank, comm: nccl.Communicator, parts: tuple[str, ...]) -> None:
        self.rank = rank
        self.comm = comm
        self.waits: dict[str, Wait] = {}
        # Kept: CUDA forgets the failures of destroyed ones. And created first: CUDA can block while
        # it creates a stream, until the operations of about 25 other streams end (seen on an H100).
        self.streams = [rank.stream() for _ in range(_STREAMS)]
        self.free = iter(self.streams)
        self.array = rank.memory.put(np.ones(4, np.float32))
        self.arrays = [rank.memory.put(np.ones(4, np.float32)) for _ in range(3)]  # of a group
        graph_stream = self.stream()
        with nccl.capture(graph_stream) as self.graph:
            self.issue(graph_stream)
        with nccl.plan() as self.plan:
            self.issue(graph_stream)
        for part in parts:
            getattr(self, f"add_{part}")()

    def issue(self, stream: nccl.Stream) -> nccl.Stream:
        self.comm.all_reduce(self.array, nccl.MAX, stream=stream)
        return stream

    def stream(self) -> nccl.Stream:
        return next(self.free)

    def work(self) -> nccl.Stream:
        """A stream with an operation."""
        return self.issue(self.stream())

    def event(self, stream: nccl.Stream, *, timing: bool = False) -> nccl.Event:
        event = self.rank.event(timing=timing)
        event.record(stream)
        return event

    def after(self, stream: nccl.Stream) -> nccl.Stream:
        """A stream that waits for another one."""
        waiting = self.stream()
        waiting.wait(self.event(stream))
        return waiting

    def add_streams(self) -> None:
        self.waits["stream.synchronize"] = self.work().synchronize
        self.waits["stream.query"] = _until_true(self.work().query)

    def add_events(self) -> None:
        self.waits["event.synchronize"] = self.event(self.work()).synchronize
        self.waits["event.query"] = _until_true(self.event(self.work()).query)
        stream = self.stream()
        began = self.event(stream, timing=True)
        ended = self.event(self.issue(stream), timing=True)
        self.waits["event.elapsed_time"] = lambda: (
            _until_true(lambda: _reached(ended))(),
            began.elapsed_time(ended),
        )

    def add_waiting_streams(self) -> None:
        self.waits["waiting.synchronize"] = self.after(self.work()).synchronize
        self.waits["waiting.query"] = _until_true(self.after(self.work()).query)
        self.waits["event of waiting"] = self.event(self.after(self.work())).synchronize
        self.waits["waiting for waiting"] = self.after(self.after(self.work())).synchronize
        late, source = self.stream(), self.event(self.work())

        def wait_later() -> None:
            late.wait(source)
            late.synchronize()

        self.waits["waiting since the failure"] = wait_later

    def add_graphs(self) -> None:
        streams = [self.stream() for _ in range(4)]
        for stream in streams:
            self.graph.launch(stream)
        self.waits["graph: stream"] = streams[0].synchronize
        self.waits["graph: query"] = _until_true(streams[1].query)
        self.waits["graph: event"] = self.event(streams[2]).synchronize
        self.waits["graph: waiting"] = self.after(streams[3]).synchronize

    def add_groups(self) -> None:
        first, second, third = (self.stream() for _ in range(3))
        with nccl.group():
            for stream, array in zip((first, second, third), self.arrays, strict=True):
                self.comm.all_reduce(array, nccl.MAX, stream=stream)
        self.waits["group: first"] = first.synchronize
        self.waits["group: second"] = second.synchronize
        self.waits["group: event"] = self.event(third).synchronize
        stream = self.stream()
        self.plan(stream=stream)
        self.waits["plan: stream"] = stream.synchronize
        stream = self.stream()
        self.plan(stream=stream)
        self.waits["plan: event"] = self.event(stream).synchronize

    def outcomes(self) -> dict[str, str]:
        return {name: _outcome(wait) for name, wait in self.waits.items()}


def _reached(event: nccl.Event) -> bool:
    try:
        return event.query()
    except nccl.NcclError:
        return True


def _outcome(wait: Wait) -> str:
    """The class and the text of the exception of a wait, or "returned"."""
    try:
        wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"


def _wait_for_a_failure(rank: Rank, failure: str, parts: tuple[str, ...]) -> dict[str, str] | None:
    late = failure in (_LATE_ON_GPUS if rank.provider == "cuda" else ("deadline",))
    timeout = _LIMIT if late else 20.0
    comm = rank.communicator(0)
    other = rank.communicator(1)
    array, received = (rank.memory.put(np.ones(4, np.float32)) for _ in range(2))
    stream = rank.stream()
    comm.all_reduce(array, stream=stream)
    with nccl.group():  # NCCL's first message in a direction waits for the other rank's call
        other.send(array, 1 - rank.rank, stream=stream)
        other.recv(received, 1 - rank.rank, stream=stream)
    stream.synchronize()
    comm.timeout = timeout
    if rank.rank == 1:
        _fail_others(rank, failure, comm, other)
        return None
    waits = _Waits(rank, comm, parts)
    rank.report("ready")
    rank.set_event("enqueued")
    if failure == "aborted":
        comm.abort()
    elif failure == "revoked":
        comm.revoke()
    elif failure == "Ctrl-C":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt_when_blocked()
        with pytest.raises(KeyboardInterrupt):
            comm.split(0)
    outcomes = waits.outcomes()
    rank.set_event("done")
    other.abort()
    comm.abort()
    return outcomes


def _fail_others(
    rank: Rank, failure: str, comm: nccl.Communicator, other: nccl.Communicator
) -> None:
    rank.report("ready")
    array = rank.memory.put(np.ones(5, np.float32))
    rank.wait_event("enqueued", 0)
    time.sleep(0.1)  # until the others wait
    if failure == "peer died":
        time.sleep(60)
    elif failure == "peer closed":
        with contextlib.suppress(nccl.NcclRemoteError):  # the others may revoke it meanwhile
            comm.close()
    elif failure == "peer aborted":
        comm.abort()
    elif failure == "peer revoked":
        comm.revoke()
    elif rank.provider == "cuda" and failure in ("mismatch", "deadlock"):
        if failure == "mismatch":
            comm.broadcast(array, 0)  # which ends: NCCL compares nothing
        else:
            other.recv(array, 0)
        rank.wait_event("done", 0)
    elif failure == "mismatch":
        with pytest.raises(nccl.NcclInvalidUsageError):
            comm.all_reduce(array)
    elif failure == "deadlock":
        with pytest.raises((nccl.NcclInvalidUsageError, nccl.NcclRemoteError)):
            other.recv(array, 0)
    else:
        rank.wait_event("done", 0)
    other.abort()
    comm.abort()


@pytest.mark.parametrize("failure", _FAILURES)
def test_every_wait_raises_the_failure(launch: Launcher, provider: str, failure: str) -> None:
    def kill(run: Run) -> None:
        run.gather_reports()
        time.sleep(0.3)
        run.kill(1)

    def table_of(*parts: str) -> dict[str, str]:
        arguments = (2, _wait_for_a_failure, failure, parts)
        if failure == "peer died":
            outcomes = launch.outcomes(
                *arguments, while_running=kill, provider=provider, ids=2, timeout=60
            )
            assert outcomes[0].ok, f"{outcomes[0].died} {outcomes[0].trace}"
            return outcomes[0].value
        threads = provider == "host" and failure not in _PROCESSES
        return launch(*arguments, threads=threads, provider=provider, ids=2, timeout=60)[0]

    if failure == "deadlock":  # hostnccl checks at most 16 waiting threads of a process
        table: dict[str, str] = {}
        for part in _PARTS:
            table |= table_of(part)
    else:
        table = table_of(*_PARTS)
    late = provider == "cuda" and failure in _LATE_ON_GPUS
    expected = (nccl.NcclTimeoutError if late else _FAILURES[failure]).__name__
    text = "\n".join(f"{wait:30}{outcome}" for wait, outcome in table.items())
    assert all(outcome.startswith(expected + ": ") for outcome in table.values()), text


@on_ranks(2, by="provider", ids=2)
def test_a_stream_reports_a_failure_once_and_an_event_always(rank: Rank) -> None:
    """Work enqueued after the report of a failure succeeds. The event keeps the failure."""
    comm, other = rank.communicator(0), rank.communicator(1)
    stream, event, array = rank.stream(), rank.event(), rank.memory.put(np.ones(4))
    comm.all_reduce(array, stream=stream)  # the first call waits for the other rank's
    stream.synchronize()
    if rank.rank == 1:
        other.all_reduce(array, stream=stream)
        stream.synchronize()
        comm.abort()
        return
    comm.all_reduce(array, stream=stream)
    event.record(stream)
    comm.abort()
    for _ in range(2):
        with pytest.raises(nccl.NcclInvalidUsageError, match="aborted"):
            event.synchronize()
        with pytest.raises(nccl.NcclInvalidUsageError, match="aborted"):
            event.query()
    other.all_reduce(array, stream=stream)
    later = rank.event()
    later.record(stream)
    later.synchronize()
    with pytest.raises(nccl.NcclInvalidUsageError, match="aborted"):
        stream.synchronize()
    stream.synchronize()
    with pytest.raises(nccl.NcclInvalidUsageError, match="aborted"):
        event.synchronize()
    event.record(stream)
    event.synchronize()


class _FunctionError(Exception):
    """Raised by a function that a stream calls."""


def _fail() -> None:
    raise _FunctionError


@pytest.mark.parametrize("captured", [False, True])
@on_ranks(1, by="provider")
def test_an_exception_of_a_launched_function_is_raised(rank: Rank, captured: bool) -> None:
    stream, other, event = rank.stream(), rank.stream(), rank.event()
    graph = None
    if captured:
        with nccl.capture(stream) as graph:
            stream.launch(_fail)
    for _ in range(2):
        stream.launch(lambda: time.sleep(0.05))
        graph.launch(stream) if graph else stream.launch(_fail)
        event.record(stream)
        other.wait(event)
        for wait in (event.synchronize, event.query, stream.synchronize, other.synchronize):
            with pytest.raises(_FunctionError):
                wait()
        stream.synchronize()
        other.synchronize()


@on_ranks(1, by="provider")
def test_a_failure_does_not_reach_streams_that_did_not_wait_for_it(rank: Rank) -> None:
    failed, healthy, earlier, other = (rank.stream() for _ in range(4))
    before, beside, gate = rank.event(), rank.event(), threading.Event()
    before.record(failed)
    earlier.wait(before)
    failed.launch(lambda: gate.wait(30))
    failed.launch(_fail)
    beside.record(healthy)
    other.wait(beside)
    gate.set()
    with pytest.raises(_FunctionError):
        failed.synchronize()
    earlier.synchronize()
    other.synchronize()


def test_the_text_of_an_exception_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exceptions themselves are kept for the 64 most recent functions that failed."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    streams = [nccl.Stream("host") for _ in range(65)]
    for stream in streams:
        failed = threading.Event()
        stream.launch(_fail)
        stream.launch(failed.set)
        assert failed.wait(30)
    with pytest.raises(nccl.NcclError, match="the stream called has raised _FunctionError"):
        streams[0].synchronize()
    with pytest.raises(_FunctionError):
        streams[1].synchronize()


@pytest.mark.gpu
@on_ranks(1, provider="cuda")
def test_events_keep_the_failures_of_destroyed_streams(rank: Rank) -> None:
    """Of the 256 most recently destroyed ones."""
    failed, cause = rank.stream(), rank.event()
    failed.launch(_fail)
    cause.record(failed)
    with pytest.raises(_FunctionError):
        cause.synchronize()
    events = [rank.event() for _ in range(257)]
    for event in events:
        stream = rank.stream()
        stream.wait(cause)
        event.record(stream)
        stream.close()
    events[0].synchronize()
    for event in events[1:]:
        with pytest.raises(_FunctionError):
            event.synchronize()


def test_a_capsule_reports_the_failure_of_its_communicator(
    pair: list[nccl.Communicator],
) -> None:
    capsule, stream = pair[0].__pynccl_communicator__(), nccl.Stream("host")
    opened, self = open_capsule(capsule)
    texts: list[bytes] = []
    report = Report(lambda _, text: texts.append(text))
    assert opened.state(self, report, None) == raw.ncclSuccess
    pair[0].all_reduce(np.ones(4), stream=stream)
    pair[1].abort()
    with pytest.raises(nccl.NcclRemoteError):
        stream.synchronize()
    assert opened.state(self, report, None) == raw.ncclRemoteError
    assert len(texts) == 1
    assert b"rank 1" in texts[0]


def test_every_waiting_thread_raises(pair: list[nccl.Communicator]) -> None:
    stream = nccl.Stream("host")
    pair[0].all_reduce(np.ones(4), stream=stream)
    threads = [Blocked(stream.synchronize) for _ in range(3)]
    for thread in threads:
        thread.wait()
    pair[0].abort()
    for thread in threads:
        thread.end()


@on_ranks(2, by="provider")
def test_nothing_is_issued_between_the_expiry_and_the_revocation(rank: Rank) -> None:
    comm = rank.communicator(0)
    stream, other, array = rank.stream(), rank.stream(), rank.memory.put(np.ones(4))
    comm.all_reduce(array, stream=stream)  # the first call waits for the other rank's
    stream.synchronize()
    comm.timeout = 0.3
    if rank.rank == 1:
        rank.wait_event("done", 0)
        comm.abort()
        return
    comm.all_reduce(array, stream=stream)
    while not comm.expired:
        pass
    with pytest.raises(nccl.NcclTimeoutError, match="did not complete within 0"):
        comm.all_reduce(array, stream=other)
    with pytest.raises(nccl.NcclTimeoutError):
        stream.synchronize()
    rank.set_event("done")
    other.synchronize()
    comm.abort()
