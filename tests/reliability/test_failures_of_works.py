"""Proves that a failure reaches every wait in both front ends, the mirror and the backend of
torch.distributed, with a class and a text that explain it: ten failures for every kind of wait, as
in tests/nccl/test_failures.py for objects.

On GPUs wait() orders streams and returns, so it cannot report what fails later: the cell is
"returned, then" what the same wait raises once the failure is known. By default a time limit ends
the process there, before the data is used (tests/c10d/test_device.py); here it raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch

from pynccl import libraries, nccl
from pynccl.c10d.build import build
from tests.c10d.versions import VERSION
from tests.reliability.workers import Lane, Member, lanes
from tests.support import gpu
from tests.support.blocking import in_threads, wait_until, wait_until_blocked
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_LIMIT = 1.0  # seconds, the rank's own time limit
_LONG = 30.0  # of groups ended by another failure
_STUCK = 60.0  # for a rank that does not end at all
_INSIDE = 0.2  # until a call certainly waits
_LANES = 4  # worlds at a time: most of their time they wait
_LARGE = 300_000  # elements: too many for a buffer between the ranks


@dataclass(frozen=True)
class _Failure:
    """A failure: the class that the mirror raises, and the text, in both front ends."""

    error: str
    text: str


_TIMEOUT = _Failure("BackendTimeoutError", r"[Tt]imed out|within 1 s|did not complete")
_FAILURES = {
    "Ctrl-C": _Failure("KeyboardInterrupt", ""),  # the first, since it takes the longest
    "peer died": _Failure("BackendRemoteError", "died"),
    "peer closed": _Failure("BackendRemoteError", "closed|destroyed|left"),
    "peer aborted": _Failure("BackendRemoteError", "aborted"),
    "peer revoked": _Failure("BackendRemoteError", "revoked"),
    "aborted": _Failure("BackendInvalidUsageError", "abort"),
    "revoked": _Failure("BackendInvalidUsageError", "revoked"),
    "mismatch": _Failure("BackendInvalidUsageError", "count=5|5 x float32"),
    "deadlock": _Failure("BackendInvalidUsageError", "deadlock"),
    "deadline": _TIMEOUT,
}


def _ends_by_the_limit(provider: str, front: str, failure: str) -> bool:
    """Whether the rank's own time limit ends the wait.

    NCCL does not notice other ranks on GPUs. A thread that waits for a work of the backend on CPUs
    does not wait in hostnccl, so hostnccl finds no deadlock.
    """
    if provider == "cuda":
        return failure not in ("aborted", "revoked")
    return failure == "deadline" or (front, failure) == ("c10d", "deadlock")


def _poll(work: Any) -> None:  # noqa: ANN401
    wait_until(work.is_completed, _LONG)
    work.wait()


def _state(work: Any) -> None:  # noqa: ANN401
    wait_until(work.is_completed, _LONG)
    if not work.is_success():
        raise work.exception()


def _value(work: Any) -> None:  # noqa: ANN401
    future = work.get_future()
    wait_until(future.done, _LONG)
    future.value()


def _then(work: Any) -> None:  # noqa: ANN401
    """The exception in the callback: torch converts a callback's exceptions to RuntimeError."""
    raised = []

    def callback(future: torch.futures.Future[Any]) -> None:
        try:
            future.value()
        except RuntimeError as error:
            raised.append(error)

    work.get_future().then(callback).wait()
    if raised:
        raise raised[0]


_LATER = timedelta(seconds=_LONG)


@dataclass(frozen=True)
class _Way:
    """A kind of wait.

    Attributes:
        begin: a method of _Scene that issues the awaited operation.
        wait: called with the result of begin.
        group: the group of the operation; waits that share it queue their operations.
        blocks: whether the caller waits, even on GPUs.
        in_thread: whether the call itself waits.
    """

    begin: str
    wait: Callable[[Any], object]
    group: str = "works"
    blocks: bool = False
    in_thread: bool = False


_WAYS = {
    "wait": _Way("all_reduce", lambda work: work.wait()),
    "wait(timeout)": _Way("all_reduce", lambda work: work.wait(_LATER), blocks=True),
    "synchronize": _Way("all_reduce", lambda work: work.synchronize()),
    "block_current_stream": _Way("all_reduce", lambda work: work.block_current_stream()),
    "is_completed, wait": _Way("all_reduce", _poll, blocks=True),
    "is_success, exception": _Way("all_reduce", _state, blocks=True),
    "future.wait": _Way("all_reduce", lambda work: work.get_future().wait()),
    "future.value": _Way("all_reduce", _value),
    "future.then": _Way("all_reduce", _then),
    "future.wait_all": _Way("all_reduce", lambda work: torch.futures.wait_all([work.get_future()])),
    "barrier.wait": _Way("barrier", lambda work: work.wait(_LATER), blocks=True),
    "irecv.wait": _Way("irecv", lambda work: work.wait(), "messages"),
    "irecv.wait(timeout)": _Way("irecv", lambda work: work.wait(_LATER), "messages", blocks=True),
    "irecv.future": _Way("irecv", lambda work: work.get_future().wait(), "messages"),
    "isend.wait": _Way("isend", lambda work: work.wait(), "messages"),
    "batch.wait": _Way("batch", lambda work: work.wait(), "messages"),
    "batch.future": _Way("batch", lambda work: work.get_future().wait(), "messages"),
    "all_reduce": _Way("nothing", lambda call: call("all_reduce"), "call", in_thread=True),
    "recv": _Way("nothing", lambda call: call("recv"), "recv", in_thread=True),
    "barrier": _Way(
        "nothing", lambda call: call("barrier"), "barrier", blocks=True, in_thread=True
    ),
}
if VERSION < (2, 13):  # torch 2.11 cannot convert the exception to Python
    del _WAYS["is_success, exception"]
_GROUPS = {way.group: way.group for way in _WAYS.values()}


class _Scene:
    """A rank with the groups of a table."""

    def __init__(self, member: Member, front: str, failure: str) -> None:
        self.front, self.rank, self.failure = front, member.rank, failure
        self.on_device = member.provider == "cuda"
        if self.on_device:
            torch.cuda.set_device(member.device)
        if front == "mirror":
            import pynccl as dist

            backend = "nccl" if self.on_device else "host"
        else:
            import torch.distributed as dist  # type: ignore[no-redef]

            import pynccl.c10d

            backend = "pynccl"
        self.dist: Any = dist
        world = {"rank": member.rank, "world_size": member.nranks, "timeout": _LATER}
        dist.init_process_group(backend, init_method=member.init_method, **world)
        alone = failure == "Ctrl-C"  # each way in a group of its own
        names = {name: way.group for name, way in _WAYS.items()} if alone else _GROUPS
        self.groups = {}
        for name, kind in {**names, "other": "recv"}.items():
            config = nccl.Config(on_timeout="raise")
            options: Any = config if front == "mirror" else pynccl.c10d.options(config=config)
            self.groups[name] = group = dist.new_group(timeout=_LATER, pg_options=options)
            self.connect(kind, group)
        self.synchronize()
        for name, group in self.groups.items():  # not earlier, because connecting takes time
            group.set_timeout(timedelta(seconds=self.limit(name)))

    def limit(self, name: str) -> float:
        """Of the operations of a group, in seconds."""
        provider = "cuda" if self.on_device else "host"
        late = _ends_by_the_limit(provider, self.front, self.failure)
        futures = self.failure == "Ctrl-C" and _WAYS.get(name) and "future" in name
        if late and self.failure == "mismatch" and self.rank == 1:
            return 3 * _LIMIT  # rank 0 must reach its own limit, not a revocation by rank 1
        return _LIMIT if late or futures else _LONG

    def tensor(self, count: int = 4) -> torch.Tensor:
        return torch.ones(count, device="cuda" if self.on_device else "cpu")

    def synchronize(self) -> None:
        if self.on_device:
            torch.cuda.synchronize()

    def connect(self, kind: str, group: Any) -> None:  # noqa: ANN401
        if kind not in ("messages", "recv"):
            self.dist.all_reduce(self.tensor(), group=group)
            return
        for work in self.batch(group), *self.messages(group):
            work.wait()

    def messages(self, group: Any) -> list[Any]:  # noqa: ANN401
        return [
            self.dist.isend(self.tensor(), 1 - self.rank, group),
            self.dist.irecv(self.tensor(), 1 - self.rank, group),
        ]

    # The operations that ranks wait for

    def all_reduce(self, group: Any, count: int = 4) -> Any:  # noqa: ANN401
        return self.dist.all_reduce(self.tensor(count), group=group, async_op=True)

    def barrier(self, group: Any) -> Any:  # noqa: ANN401
        return self.dist.barrier(group, async_op=True)

    def irecv(self, group: Any) -> Any:  # noqa: ANN401
        return self.dist.irecv(self.tensor(), 1, group)

    def isend(self, group: Any) -> Any:  # noqa: ANN401
        return self.dist.isend(self.tensor(_LARGE), 1, group)

    def batch(self, group: Any, count: int = 4) -> Any:  # noqa: ANN401
        peer, dist = 1 - self.rank, self.dist
        operations = [
            dist.P2POp(dist.isend, self.tensor(count), peer, group),
            dist.P2POp(dist.irecv, self.tensor(count), peer, group),
        ]
        return dist.batch_isend_irecv(operations)[-1]

    def nothing(self, group: Any) -> Callable[[str], object]:  # noqa: ANN401
        """Calls a function that itself waits."""
        calls = {
            "all_reduce": lambda: self.dist.all_reduce(self.tensor(), group=group),
            "barrier": lambda: self.dist.barrier(group),
            "recv": lambda: self.dist.recv(self.tensor(), 1, group),
        }
        return lambda name: calls[name]()

    # The failures

    def fail(self) -> None:
        """Cause the failure: on this rank to test its own failure, otherwise on rank 1."""
        match self.failure.removeprefix("peer "):
            case "closed":
                for group in self.groups.values():
                    with contextlib.suppress(RuntimeError):  # the other one may raise first
                        self.dist.destroy_process_group(group)
            case "aborted":
                # An abort may wait for other groups' operations on the same stream.
                in_threads(*(one.abort for one in self.groups.values()))
            case "revoked":
                for comm in nccl.flight_record():
                    comm.revoke()
            case "mismatch":
                for name, group in self.groups.items():
                    with contextlib.suppress(RuntimeError):
                        self.mismatch(name, group)
            case "deadlock":
                with contextlib.suppress(RuntimeError):
                    self.dist.recv(self.tensor(), 0, self.groups["other"])

    def mismatch(self, name: str, group: Any) -> None:  # noqa: ANN401
        works = []
        if name == "recv":
            works = [self.dist.isend(self.tensor(5), 0, group)]
        elif name == "messages":
            works = [
                self.dist.isend(self.tensor(5), 0, group),
                self.dist.irecv(self.tensor(5), 0, group),
                self.batch(group, 5),
            ]
        elif name != "other":
            works = [self.all_reduce(group, 5)]
        for work in works:
            with contextlib.suppress(RuntimeError):
                work.wait()

    def end(self) -> None:
        for group in self.groups.values():
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                group.abort()
        with contextlib.suppress(RuntimeError):
            self.dist.distributed_c10d._get_default_group().abort() if (
                self.front == "c10d"
            ) else self.dist.group.WORLD.abort()
        self.synchronize()
        self.dist.destroy_process_group()


def _outcome(wait: Callable[[], object]) -> str:
    """The class and the text of a wait's exception, or that it returned."""
    try:
        wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"


def _later(wait: Callable[[], object]) -> str:
    """The same, once the failure is known."""
    outcome, until = "returned", time.monotonic() + 10 * _LIMIT
    while outcome == "returned" and time.monotonic() < until:
        outcome = _outcome(wait)
        time.sleep(0.01)
    return outcome


def _interrupted(wait: Callable[[], object]) -> str:
    """The same for a wait in the main thread, which gets a signal."""
    timer = threading.Timer(_INSIDE, os.kill, [os.getpid(), signal.SIGINT])
    ended = ""
    try:
        timer.start()
        ended = _outcome(wait)
        timer.join()
        time.sleep(_STUCK)
    except KeyboardInterrupt as error:
        before = error.__context__
        while isinstance(before, KeyboardInterrupt):
            before = before.__context__
        first = ended or (f"{type(before).__name__}: {before}" if before else "")
        return f"KeyboardInterrupt after {first}" if first else "KeyboardInterrupt: "
    return f"not interrupted: {ended}"


def _failures_of_works(member: Member, front: str, failure: str) -> dict[str, str]:
    scene = _Scene(member, front, failure)
    member.report("ready")
    if member.rank == 1:
        member.hear("fail")
        time.sleep(_INSIDE)
        if failure not in ("aborted", "revoked"):
            scene.fail()
        member.hear("end")
        scene.end()
        return {}
    table = _interrupt_each(scene) if failure == "Ctrl-C" else _table(member, scene)
    member.report("done")
    member.hear("end")
    scene.end()
    return table


def _interrupt_each(scene: _Scene) -> dict[str, str]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    table, waits = {}, {}
    for name, way in _WAYS.items():
        begun = getattr(scene, way.begin)(scene.groups[name])
        waits[name] = partial(way.wait, begun)
        table[name] = _interrupted(waits[name])
    for name, wait in waits.items():
        if table[name].endswith("returned"):
            table[name] += f", then {_later(wait)}"
    signal.signal(signal.SIGINT, before)
    return table


def _begin(scene: _Scene, way: _Way) -> Callable[[], object]:
    """Issue the operation, and return its wait, which raises what the issue raises: on a busy
    machine, the time limit of an earlier operation may have ended the group.
    """
    try:
        return partial(way.wait, getattr(scene, way.begin)(scene.groups[way.group]))
    except RuntimeError as error:
        refused = error

    def wait() -> None:
        raise refused

    return wait


def _table(member: Member, scene: _Scene) -> dict[str, str]:
    waits: dict[str, Callable[[], object]] = {}
    table: dict[str, str] = {}
    threads = []
    for name, way in sorted(_WAYS.items(), key=lambda item: item[1].blocks):
        waits[name] = _begin(scene, way)
        if way.in_thread and not scene.on_device:

            def run(name: str = name) -> None:
                table[name] = _outcome(waits[name])

            threads.append(threading.Thread(target=run))
            threads[-1].start()
    for thread in threads:
        wait_until_blocked(thread)
    member.report("issued")
    if scene.failure in ("aborted", "revoked"):
        threading.Timer(_INSIDE, scene.fail).start()
    for name, wait in waits.items():
        if not (_WAYS[name].in_thread and threads):
            table[name] = _outcome(wait)
    for thread in threads:
        thread.join()
    for name, first in table.items():
        if first == "returned":
            table[name] += f", then {_later(waits[name])}"
    return table


def _run(lane: Lane, provider: str, front: str, failure: str) -> dict[str, str]:
    """The outcome of every way to wait."""
    with lane.world(2, _failures_of_works, front, failure, provider=provider) as world:
        world.gather(range(2), "ready", _STUCK)
        if failure != "Ctrl-C":
            world.gather([0], "issued", _STUCK)
        world.say([1], "fail")
        if failure == "peer died":
            time.sleep(_INSIDE)
            world.signal(1, signal.SIGKILL)
        world.gather([0], "done", _STUCK)
        world.say(range(2), "end")
        survivors = range(1 if failure == "peer died" else 2)
        table: dict[str, str] = world.join(survivors, _STUCK)[0]
    return table


_FRONTS = ("mirror", "c10d")
# Failures that NCCL on GPUs may detect before the time limit, as the double does.
_SOMETIMES = ("mismatch", "deadlock")
# NCCL on GPUs detects none of these: the operation times out as if a rank were missing.
_UNNOTICED = ("peer closed", "peer aborted", "peer revoked")
Tables = dict[tuple[str, str], Future[dict[str, str]]]  # by front end and failure


def _expected(provider: str, front: str, failure: str, name: str) -> str:
    """A pattern of an outcome."""
    way = _WAYS[name]
    late = _ends_by_the_limit(provider, front, failure)
    ends = _TIMEOUT if late else _FAILURES[failure]
    error = ends.error if front == "mirror" else "DistBackendError"
    orders = provider == "cuda" and not way.blocks
    raised = f"{error}: .*({ends.text})"
    if provider == "cuda" and (front, failure) == ("mirror", "aborted") and way.in_thread:
        raised = f"({error}|ValueError): .*{ends.text}"  # of a call with a group that has ended
    if provider == "cuda" and failure in _SOMETIMES:
        raised = f"{error}: .*({ends.text}|{_FAILURES[failure].text})"
        raised = raised.replace("Timeout", "(Timeout|InvalidUsage)")
    if failure != "Ctrl-C":
        if orders and late:  # on a busy machine the limit may expire before it returns
            return f"(returned, then )?{raised}"
        return f"returned, then {raised}" if orders else raised
    if orders:  # on a busy machine the signal may arrive before it returns
        return f"KeyboardInterrupt(: $| after returned, then {raised})"
    if "future" in name and name != "future.value":
        # The wait is torch's, and ends by the limit.
        error = "BackendTimeoutError" if front == "mirror" else "DistBackendError"
        return f"KeyboardInterrupt(: | after {error}: .*({_TIMEOUT.text}))"
    if front == "c10d" and way.in_thread:  # the handler may run when the call has raised
        return "KeyboardInterrupt(: | after DistBackendError: .*interrupted by a signal)"
    return "KeyboardInterrupt: "


@pytest.fixture(scope="module", params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def tables(request: pytest.FixtureRequest) -> Iterator[tuple[str, Tables]]:
    """The tables of a provider, several at a time."""
    build()  # which exceeds the time limit of a world
    provider: str = request.param
    if provider == "cuda" and (reason := gpu.missing()):
        pytest.skip(reason)
    with lanes(_LANES) as submit:
        selected = dict.fromkeys(
            (item.callspec.params["front"], item.callspec.params["failure"])
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.path == request.path
        )
        left = set() if FULL or provider == "host" else set(_UNNOTICED)
        if not libraries.load(provider).functions()["ncclCommRevoke"][1]:
            left |= {"revoked", "peer revoked"}
        yield (
            provider,
            {each: submit(_run, provider, *each) for each in selected if each[1] not in left},
        )


@pytest.mark.parametrize("front", _FRONTS)
@pytest.mark.parametrize("failure", _FAILURES)
def test_every_wait_of_both_front_ends_raises_the_failure(
    tables: tuple[str, Tables], front: str, failure: str
) -> None:
    provider, results = tables
    if "revoked" in failure:
        gpu.require(provider, "ncclCommRevoke")
    if (front, failure) not in results:
        pytest.skip("ends by the limit, as where a peer has died: `make test-all`")
    table = results[front, failure].result()
    assert table.keys() == _WAYS.keys()
    wrong = []
    for way, outcome in table.items():
        pattern = _expected(provider, front, failure, way)
        if not re.match(pattern, outcome, re.DOTALL):
            wrong.append(f"{way:24}{outcome}\n{'':24}expected {pattern}")
    assert not wrong, "\n".join(wrong)
