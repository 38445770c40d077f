"""Processes for many short worlds, of which signals end some.

Those that survive a world are kept for the next one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import pickle
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from tests.support import warm
from tests.support.rank import Rank

T = TypeVar("T")

_PRELOADED = ("tests.reliability.cells", "tests.reliability.random_programs")
# What a process with tensors on GPUs imports; the second by the first operation of the double's.
FOR_GPUS = ("torch", "torch.distributed.tensor")
_END = 10.0  # seconds for a process to end that was killed


@dataclass
class Job:
    world: int
    function: Callable[..., Any]
    args: tuple[object, ...]
    keywords: dict[str, object]
    rank: int
    nranks: int
    provider: str


@dataclass
class Told:
    """A message of a rank to the test, or back: a tag, and for "share" a value for the others."""

    tag: str
    value: Any = None
    world: int = 0


@dataclass
class Ended:
    """How a rank ended: with a value, or with the text of an exception."""

    value: Any = None
    trace: str = ""


class Member(Rank):
    """A rank of a world, in its process."""

    hear: Callable[[str], Any]

    def share(self, make: Callable[[], T], maker: int = 0) -> T:
        """What the maker has made, on all ranks."""
        if self.rank != maker:
            return cast("T", self.hear("share"))
        value = make()
        self.report(Told("share", value))
        return value

    def share_id(self, maker: int = 0) -> bytes:
        """A unique id that the maker has made, on all ranks."""
        from pynccl import nccl

        return self.share(lambda: bytes(nccl.get_unique_id(self.provider)), maker)

    def tell(self, tag: str) -> None:
        self.report(Told(tag))

    def sleep_for_ever(self) -> None:
        """Until a signal ends this process, or the test its world."""
        self.hear("never")


def serve(descriptor: int, traces: int) -> None:
    """Run jobs until the test closes the connection."""
    connection = Connection(descriptor)
    faulthandler.enable(file=traces)
    faulthandler.register(signal.SIGUSR1, file=traces, all_threads=True)
    lock = threading.Lock()

    def send(message: object) -> None:
        with lock:
            connection.send_bytes(pickle.dumps(message))

    def hear(tag: str) -> Any:  # noqa: ANN401
        while True:  # also past what was said to ranks of an earlier world that did not hear it
            told: Told = pickle.loads(connection.recv_bytes())
            if (told.world, told.tag) == (job.world, tag):
                return told.value

    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            job: Job | Told = pickle.loads(connection.recv_bytes())
            if isinstance(job, Told):
                continue
            if job.provider == "cuda":
                from tests.support import gpu

                os.environ.update(gpu.environment(job.nranks, os.getpid()))
            member = Member(job.rank, job.nranks, job.provider, [], "", send)
            member.hear = hear
            try:
                send(Ended(job.function(member, *job.args, **job.keywords)))
            except (EOFError, ConnectionResetError, BrokenPipeError):
                raise
            except BaseException:
                send(Ended(trace=traceback.format_exc()))
    os._exit(0)  # threads may be stuck, and an orderly exit would wait for them


class _Popen(warm.Popen):
    """A fork of a process with these modules imported."""

    def __init__(self, modules: tuple[str, ...], *descriptors: int) -> None:
        self.modules = (*modules, *_PRELOADED)
        numbers = ", ".join(map(str, descriptors))
        program = f"from tests.reliability import workers; workers.serve({numbers})"
        super().__init__([sys.executable, "-c", program], pass_fds=descriptors)


class Worker:
    """A process that serves jobs, and the connection to it."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        self._traces = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        with theirs:
            self._popen = _Popen(modules, theirs.fileno(), self._traces.fileno())
        self.pid = self._popen.pid
        self.connection = Connection(ours.detach())

    def send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died
            self.connection.send_bytes(pickle.dumps(message))

    def trace(self) -> str:
        """Where its threads are."""
        self._popen.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        return os.pread(self._traces.fileno(), 8000, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill the process, and fail if it does not end."""
        self._popen.kill()
        self._popen.wait(_END)
        self.connection.close()
        self._traces.close()


class WorldError(AssertionError):
    """A rank did not do in time what the test waits for, or its function raised."""


@dataclass
class World:
    """The workers of a world by rank, and what they have told."""

    workers: list[Worker]
    number: int = field(default_factory=itertools.count(1).__next__)
    told: dict[int, list[str]] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)

    def start(
        self, provider: str, function: Callable[..., Any], *args: object, **keywords: object
    ) -> None:
        nranks = len(self.workers)
        for rank, worker in enumerate(self.workers):
            self.told[rank] = []
            worker.send(Job(self.number, function, args, keywords, rank, nranks, provider))

    def say(self, ranks: Iterable[int], tag: str) -> None:
        for rank in ranks:
            self.workers[rank].send(Told(tag, world=self.number))

    def signal(self, rank: int, number: int) -> float:
        """Send a signal to a rank's process; the time."""
        os.kill(self.workers[rank].pid, number)
        return time.monotonic()

    def gather(self, ranks: Iterable[int], tag: str, timeout: float) -> None:
        """Wait until all these ranks have told it, or ended.

        Raises:
            WorldError: they have not in time.
        """
        self._until(lambda rank: tag in self.told[rank], ranks, f"told {tag!r}", timeout)

    def join(self, ranks: Iterable[int], timeout: float) -> list[Any]:
        """What the functions of these ranks returned.

        Raises:
            WorldError: one raised, died or had not ended in time.
        """
        ranks = list(ranks)
        self._until(lambda _: False, ranks, "ended", timeout)
        traces = [f"rank {rank}: {self.ended[rank].trace}" for rank in ranks if self.failed(rank)]
        if traces:
            raise WorldError("\n".join(traces))
        return [self.ended[rank].value for rank in ranks]

    def failed(self, rank: int) -> bool:
        return bool(self.ended[rank].trace)

    def _until(
        self, has: Callable[[int], bool], ranks: Iterable[int], what: str, timeout: float
    ) -> None:
        deadline = time.monotonic() + timeout
        waited = set(ranks)
        while waited := {r for r in waited if r not in self.ended and not has(r)}:
            left = deadline - time.monotonic()
            if left <= 0 or not self._receive(left):
                traces = "\n".join(f"rank {r}: {self.workers[r].trace()}" for r in sorted(waited))
                raise WorldError(
                    f"ranks {sorted(waited)} have not {what} within {timeout:g} s\n{traces}"
                )

    def _receive(self, timeout: float) -> bool:
        """Take what has arrived; whether something has."""
        living = {
            worker.connection: rank
            for rank, worker in enumerate(self.workers)
            if rank not in self.dead
        }
        ready = wait(list(living), timeout)
        for connection in ready:
            rank = living[connection]  # type: ignore[index]
            try:
                message = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, ConnectionResetError):
                self.dead.add(rank)
                self.ended.setdefault(rank, Ended(trace="its process has died"))
                continue
            if isinstance(message, Ended):
                self.ended[rank] = message
            elif message.tag == "share":
                message.world = self.number
                for other, worker in enumerate(self.workers):
                    if other != rank:
                        worker.send(message)
            else:
                self.told[rank].append(message.tag)
        return bool(ready)


class Lane:
    """Worlds one after another, on workers that are kept as long as nothing goes wrong.

    Args:
        modules: imported in the workers before they are forked.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self._modules = modules
        self._idle: list[Worker] = []

    @contextlib.contextmanager
    def world(self, nranks: int, victims: Iterable[int] = ()) -> Iterator[World]:
        """A world, whose victims are new processes that end with it, and all others where the block
        raises.
        """
        victims = set(victims)
        workers = [
            Worker(self._modules) if rank in victims or not self._idle else self._idle.pop()
            for rank in range(nranks)
        ]
        world = World(workers)
        try:
            yield world
        except BaseException:
            victims = set(range(nranks))
            raise
        finally:
            for rank, worker in enumerate(workers):
                if rank in victims or rank not in world.ended or world.failed(rank):
                    worker.kill()
                else:
                    self._idle.append(worker)

    def pids(self) -> list[int]:
        """The processes that wait for the next world."""
        return sorted(worker.pid for worker in self._idle)

    def close(self) -> None:
        for worker in self._idle:
            worker.kill()
        self._idle.clear()


class Lanes:
    """Several lanes, each with one world at a time: most of their time worlds wait. A context
    manager.
    """

    def __init__(self, count: int, modules: tuple[str, ...] = ()) -> None:
        self._all = [Lane(modules) for _ in range(count)]
        self._free: queue.Queue[Lane] = queue.Queue()
        for lane in self._all:
            self._free.put(lane)
        self._pool = ThreadPoolExecutor(count)

    def submit(self, function: Callable[..., T], *args: object, **keywords: object) -> Future[T]:
        """Call a function with a lane, when one is free."""
        return self._pool.submit(self._run, function, args, keywords)

    def _run(
        self, function: Callable[..., T], args: tuple[object, ...], keywords: dict[str, object]
    ) -> T:
        lane = self._free.get()
        try:
            return function(lane, *args, **keywords)
        finally:
            self._free.put(lane)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for lane in self._all:
            lane.close()
