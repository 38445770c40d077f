"""Runs a test's function as the ranks of a world, with a deadline.

Ranks are processes, or threads of one process. The processes are kept for the next test, because
starting Python and NumPy sixteen times is slow on two cores; after a failure, or when a test asks
for it, they are replaced. No process outlives its launcher.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypedDict

from tests.support.worker import Job, Outcome, make_ids

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GRACE = 10.0  # seconds that the others have after one rank has failed
# No job gets more seconds than this, whatever it asks for (tests/report/run.py sets it).
_LIMIT = float(os.environ.get("PYNCCL_TEST_LIMIT", "inf"))


class World(NamedTuple):
    """The size of a world that was started, and what its ranks are."""

    nranks: int
    threads: bool


class Options(TypedDict, total=False):
    """How a job runs.

    Attributes:
        provider: which library the ranks use; "host" by default.
        timeout: seconds for all of it; what is still running then is killed.
        threads: ranks as threads of one process.
        ids: how many unique ids the world gets.
        env: environment variables for the processes.
    """

    provider: str
    timeout: float
    threads: bool
    ids: int
    env: Mapping[str, str]


class RankFailure(AssertionError):  # noqa: N818 - as in a test's failure
    """At least one rank failed. The text has every rank's traceback; the first exception is the
    cause.
    """

    def __init__(self, message: str, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(message)
        self.outcomes = list(outcomes)


class Process:
    """A worker process and what it has written to stderr."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        code = f"import sys; sys.path[:] = {sys.path!r}; from tests.support import worker; "
        code += f"worker.main({theirs.fileno()}, {os.getpid()})"
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
                stderr=self.stderr,
            )
        self.connection = Connection(ours.detach())

    def describe_death(self) -> str:
        code = self.popen.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def tail(self) -> str:
        """The last it wrote to stderr."""
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - 8000))
        return self.stderr.read().decode(errors="replace")

    def kill(self) -> None:
        self.popen.kill()
        self.close()

    def close(self) -> None:
        """Let it end, which it does when the connection closes; kill it where it does not."""
        self.connection.close()
        try:
            self.popen.wait(2)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.stderr.close()


class Run:
    """A job in progress: the ranks of one world on their processes."""

    def __init__(self, processes: list[Process], hosted: list[list[int]], timeout: float) -> None:
        self.processes = processes
        self._hosted = hosted
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._outcomes: dict[int, Outcome] = {}
        self._told: dict[int, list[Any]] = {}

    @property
    def nranks(self) -> int:
        return sum(map(len, self._hosted))

    def hear(self) -> list[Any]:
        """Wait until every rank has told something, and return it in the order of ranks."""
        ranks = range(self.nranks)
        while silent := [rank for rank in ranks if not self._told.get(rank)]:
            ended = any(rank in self._outcomes for rank in silent)
            if ended or not self._receive():
                outcomes = self.outcomes()
                raise RankFailure(self._report("before all had told something"), outcomes)
        return [self._told[rank].pop(0) for rank in ranks]

    def kill(self, rank: int, with_signal: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to a rank's process; returns the moment (time.monotonic, common to all
        processes).
        """
        process = next(
            p for p, hosted in zip(self.processes, self._hosted, strict=True) if rank in hosted
        )
        moment = time.monotonic()
        process.popen.send_signal(with_signal)
        return moment

    def outcomes(self) -> list[Outcome]:
        """Wait for all ranks, or for the deadline, and return how each of them ended."""
        while len(self._outcomes) < self.nranks and self._receive():
            if any(not outcome.ok for outcome in self._outcomes.values()):
                self._deadline = min(self._deadline, time.monotonic() + _GRACE)
        if len(self._outcomes) < self.nranks:
            self._expire()
        return [self._outcomes[rank] for rank in range(self.nranks)]

    def values(self) -> list[Any]:
        """Wait for all ranks and return what each of them returned.

        Raises:
            RankFailure: one of them failed; its text has the traceback of each that did.
        """
        outcomes = self.outcomes()
        if all(outcome.ok for outcome in outcomes):
            return [outcome.value for outcome in outcomes]
        cause = next((o.error for o in outcomes if o.error is not None), None)
        raise RankFailure(self._report(), outcomes) from cause

    def _receive(self) -> bool:
        """Take what has come; False when the deadline has passed."""
        waiting = {
            process.connection: index
            for index, process in enumerate(self.processes)
            if any(rank not in self._outcomes for rank in self._hosted[index])
        }
        left = self._deadline - time.monotonic()
        ready = wait(list(waiting), max(left, 0))
        for connection in ready:
            index = waiting[connection]  # type: ignore[index]
            try:
                kind, value = self.processes[index].connection.recv()
            except (EOFError, ConnectionResetError):
                self._note_death(index)
                continue
            if kind == "told":
                self._told.setdefault(value[0], []).append(value[1])
            elif value.rank < 0:
                for rank in self._hosted[index]:
                    self._outcomes[rank] = Outcome(rank, error=value.error, trace=value.trace)
            else:
                self._outcomes[value.rank] = value
        return bool(ready)

    def _note_death(self, index: int) -> None:
        process = self.processes[index]
        died = process.describe_death()
        for rank in self._hosted[index]:
            self._outcomes.setdefault(rank, Outcome(rank, died=died, trace=process.tail()))

    def _expire(self) -> None:
        """Ask the ranks that are left where they are, then kill them."""
        left = [
            index
            for index, hosted in enumerate(self._hosted)
            if any(rank not in self._outcomes for rank in hosted)
        ]
        for index in left:
            self.processes[index].popen.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        for index in left:
            process = self.processes[index]
            process.popen.kill()
            process.popen.wait()
            for rank in self._hosted[index]:
                died = f"not done within {self._timeout:g} s, or within {_GRACE:g} s of a failure"
                self._outcomes.setdefault(rank, Outcome(rank, died=died, trace=process.tail()))

    def _report(self, when: str = "") -> str:
        failed = [outcome for _, outcome in sorted(self._outcomes.items()) if not outcome.ok]
        lines = [f"{len(failed)} of {self.nranks} ranks failed {when}".rstrip()]
        for outcome in failed:
            what = outcome.died or f"{type(outcome.error).__name__}: {outcome.error}"
            lines += [f"--- rank {outcome.rank}: {what}", outcome.trace.rstrip()]
        return "\n".join(lines)


class Launcher:
    """Starts jobs on processes that it keeps, one set for each environment.

    Attributes:
        worlds: those that were started, in order, for reports of what was covered.
    """

    def __init__(self) -> None:
        self.worlds: list[World] = []
        self._pools: dict[tuple[tuple[str, str], ...], list[Process]] = {}

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in self._pools.values():
            for process in pool:
                process.close()
        self._pools.clear()

    def __call__(
        self,
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        fresh: bool = False,
        **options: Unpack[Options],
    ) -> list[Any]:
        """Call ``function(rank, *args)`` on every rank and return what they returned, in order.

        Args:
            nranks: the world's size.
            function: a function at the top of a module; its first argument is a worker.Rank.
            *args: anything that can be pickled.
            fresh: processes of its own, which end with it.
            **options: see Options.

        Raises:
            RankFailure: a rank raised, died, or was not done in time. Where the loaded NCCL is too
                old for what it called, on GPUs, the test is skipped instead.
        """
        run, pool = self._begin(nranks, function, args, fresh=fresh, **options)
        try:
            return run.values()
        except RankFailure as failure:
            if options.get("provider") == "cuda":
                skip_old(failure)
            raise
        finally:
            self._end(run, pool)

    def outcomes(
        self,
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        while_running: Callable[[Run], None] | None = None,
        **options: Unpack[Options],
    ) -> list[Outcome]:
        """Do the same in fresh processes with ranks that may fail; returns how each of them ended.

        Args:
            nranks: the world's size.
            function: as for a call.
            *args: as for a call.
            while_running: called in this process while the ranks run, to kill some of them.
            **options: see Options.
        """
        run, pool = self._begin(nranks, function, args, fresh=True, **options)
        try:
            if while_running:
                while_running(run)
            outcomes = run.outcomes()
            if options.get("provider") == "cuda":
                alive = [outcome for outcome in outcomes if not outcome.died]
                skip_old(RankFailure("", alive))
            return outcomes
        finally:
            self._end(run, pool)

    def _begin(
        self,
        nranks: int,
        function: Callable[..., Any],
        args: tuple[object, ...],
        *,
        fresh: bool,
        provider: str = "host",
        timeout: float = 60,
        threads: bool = False,
        ids: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Run, list[Process]]:
        env = dict(env or {})
        environments = [env] * nranks
        if provider == "cuda":
            import pytest

            from tests.support import gpu

            if reason := gpu.too_many(nranks, threads=threads):
                pytest.skip(reason)
            environments = [{**gpu.environment(nranks, rank), **env} for rank in range(nranks)]
        key = tuple(sorted(environments[0].items()))
        pool = [] if fresh else self._pools.setdefault(key, [])
        hosted = [list(range(nranks))] if threads else [[rank] for rank in range(nranks)]
        for environment_of_rank in environments[len(pool) : len(hosted)]:
            pool.append(Process(environment_of_rank))
        processes = pool[: len(hosted)]
        try:
            unique_ids = self._make_ids(processes[0], ids, provider)
            for process, ranks in zip(processes, hosted, strict=True):
                process.connection.send(Job(function, args, ranks, nranks, provider, unique_ids))
        except BaseException:
            self._drop(pool)
            raise
        self.worlds.append(World(nranks, threads))
        return Run(processes, hosted, min(timeout, _LIMIT)), pool

    @staticmethod
    def _make_ids(process: Process, count: int, provider: str) -> list[bytes]:
        process.connection.send(Job(make_ids, (count, provider), [0], 1, provider, []))
        ids: list[bytes] = Run([process], [[0]], 60).values()[0]
        return ids

    def _end(self, run: Run, pool: list[Process]) -> None:
        """Keep the processes where all of them ended well."""
        kept = any(pool is known for known in self._pools.values())
        try:
            well = all(outcome.ok or outcome.lacks for outcome in run._outcomes.values())
            well = well and len(run._outcomes) == run.nranks
        finally:
            if not (kept and well):
                self._drop(pool)

    @staticmethod
    def _drop(pool: list[Process]) -> None:
        for process in pool:
            process.kill()
        pool.clear()


def skip_old(failure: RankFailure) -> None:
    """Skip the test where no rank failed but for a function that its NCCL is too old for."""
    import pytest

    failed = [outcome for outcome in failure.outcomes if not outcome.ok]
    if failed and all(outcome.lacks for outcome in failed):
        pytest.skip(failed[0].lacks)
