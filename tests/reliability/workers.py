"""Launches of which signals end some ranks, with messages between the test and its ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for

T = TypeVar("T")

_LONG = 120.0  # seconds that a rank waits for the test


class Member(Rank):
    """A rank that exchanges values with the others, and messages with the test."""

    _shared = 0

    def share(self, make: Callable[[], T] | None = None, maker: int = 0) -> T:
        """Return on all ranks the value that one of them creates."""
        self._shared += 1
        path = Path(self._event("shared", self._shared))
        if make is not None and self.rank == maker:
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps(make()))
            part.rename(path)
        wait_for(str(path))
        return cast("T", pickle.loads(path.read_bytes()))

    def share_id(self, maker: int = 0) -> bytes:
        """A unique id created by the maker, on all ranks."""
        from pynccl import nccl

        return self.share(lambda: bytes(nccl.get_unique_id(self.provider)), maker)

    def hear(self, tag: str) -> None:
        """Wait for a message of the test."""
        wait_for(self._event(tag, self.rank), _LONG)

    def sleep_for_ever(self) -> None:
        """Until a signal ends this process, or the test its world."""
        threading.Event().wait()


class WorldError(AssertionError):
    """A rank did not reach the awaited point in time, or its function raised."""


class World:
    """The ranks of a launch, and what they have told."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def pid(self, rank: int) -> int:
        return self._run._processes[rank].popen.pid

    def told(self, rank: int) -> list[Any]:
        return [value for teller, value in self._run._reports if teller == rank]

    def say(self, ranks: Iterable[int], tag: str) -> None:
        for rank in ranks:
            Path(str(self._run._folder), f"store.{tag}.{rank}").touch()

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank's process; the time."""
        return self._run.kill(rank, number)

    def gather(self, ranks: Iterable[int], tag: object, timeout: float) -> None:
        """Wait until all these ranks have told it, or ended.

        Raises:
            WorldError: they did not in time.
        """
        self._until(lambda rank: tag in self.told(rank), ranks, f"told {tag!r}", timeout)

    def join(self, ranks: Iterable[int], timeout: float) -> list[Any]:
        """The results of these ranks' functions.

        Raises:
            WorldError: one raised, died or did not end in time.
        """
        ranks = list(ranks)
        self._until(lambda _: False, ranks, "ended", timeout)
        outcomes = [self._run._outcomes[rank] for rank in ranks]
        if not all(outcome.ok for outcome in outcomes):
            raise WorldError(self._run._describe())
        return [outcome.value for outcome in outcomes]

    def _until(
        self, has: Callable[[int], bool], ranks: Iterable[int], what: str, timeout: float
    ) -> None:
        run = self._run
        run._deadline = time.monotonic() + timeout
        while any(rank not in run._outcomes and not has(rank) for rank in ranks):
            if not run._receive():
                run._limit = f"not {what} within {timeout:g} s"
                run._expire()
                raise WorldError(run._describe())


class Lane(Launcher):
    """Launches one world after another. Processes of worlds without a death are used again."""

    def __init__(self) -> None:
        super().__init__(Member)

    @contextlib.contextmanager
    def world(
        self,
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        provider: str = "host",
        **keywords: object,
    ) -> Iterator[World]:
        """Call a function on each rank of a world, whose ranks end with the block."""
        env: list[dict[str, str]] = [{} for _ in range(nranks)]
        if provider == "cuda":
            from tests.support import gpu

            env = [gpu.environment(nranks, os.getpid() + rank) for rank in range(nranks)]
        options = {"provider": provider, "timeout": None, "unique_ids": 0, "env": env}
        with self.start(nranks, function, args, keywords, **options) as run:
            yield World(run)

    def pids(self) -> list[int]:
        """The processes that wait for the next world."""
        return sorted(one.popen.pid for idle in self._idle.values() for one in idle)


@contextlib.contextmanager
def lanes(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Several lanes, each with one world at a time: most of their time worlds wait.

    Yields:
        A function that has a function called with a lane, and its other arguments.
    """
    free: queue.SimpleQueue[Lane] = queue.SimpleQueue()

    def run(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:  # noqa: ANN401
        lane = free.get()
        try:
            return function(lane, *args, **keywords)
        finally:
            free.put(lane)

    def submit(function: Callable[..., Any], *args: object, **keywords: object) -> Future[Any]:
        return pool.submit(run, function, args, keywords)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            free.put(stack.enter_context(Lane()))
        yield submit
        pool.shutdown(cancel_futures=True)
