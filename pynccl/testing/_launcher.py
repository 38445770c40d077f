"""Starts ranks as processes or threads, and reuses the processes for later launches."""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, TypeVar

from pynccl.testing import _worker
from pynccl.testing._arguments import (
    Environment,
    check_integer,
    check_seconds,
    check_str,
    environments,
    pickled,
)
from pynccl.testing._rank import Outcome, Rank
from pynccl.testing._worker import Ended, Job, Joins, Reported

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = [
    "LaunchError",
    "Launcher",
    "Options",
    "Process",
    "Run",
    "copy_environment",
    "launch",
]

# Sources of compilation at run time, by file names in a traceback.
_COMPILERS = {
    "pynccl/c10d/build.py": "the backend of torch.distributed: python -m pynccl build-backend",
    "torch/utils/cpp_extension.py": "an extension of torch",
    "torch/_dynamo/convert_frame.py": "torch.compile",
    "triton/compiler/": "Triton",
    "numba/core/": "Numba",
    "cupy/cuda/compiler.py": "CuPy",
}
_MAX_TRACE_BYTES = 8000  # reported bytes of a dead process's stack traces
T = TypeVar("T")

_GRACE = 10.0
_LONGEST_WAIT = 86400.0  # seconds; poll() takes at most 24 days
_SHORTEST_READ = 1.0  # seconds for a message that has begun to arrive
_MAKE_IDS = 60.0  # seconds to create unique ids, including the start of a process
# The part of multiprocessing's preparation data that a worker requires to import the main module.
_MAIN = ("init_main_from_name", "init_main_from_path", "sys_argv", "dir")


class LaunchError(RuntimeError):
    """At least one rank failed, died or timed out.

    The text contains the traceback of every failed rank; ``__cause__`` is the first exception.

    Attributes:
        outcomes: the outcome of each rank, by rank.
    """

    def __init__(self, message: str, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(message)
        self.outcomes = list(outcomes)


def copy_environment() -> dict[str, str]:
    """Return a copy of os.environ, which other threads may change meanwhile."""
    values = {name: os.environ.get(name) for name in list(os.environ)}
    return {name: value for name, value in values.items() if value is not None}


class Process:
    """A worker process, the connection to it, and the file for its stack traces."""

    def __init__(
        self,
        environment: Environment,
        *,
        fresh: bool,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
        parent: int | None = None,
    ) -> None:
        self.environment = environment
        self.fresh = fresh  # not to be reused
        ours, theirs = socket.socketpair()
        ours.setblocking(True)  # whatever socket.setdefaulttimeout() was
        theirs.setblocking(True)
        self._traces: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        traces = self._traces.fileno()
        path = [entry for entry in sys.path if isinstance(entry, str)]  # as the import system does
        code = f"import sys; sys.path[:] = {path!r}; from pynccl.testing import _worker; "
        code += f"_worker.main({theirs.fileno()}, {traces}, {parent or os.getpid()})"
        with theirs:
            self.popen = popen(
                [sys.executable, "-c", code],
                env={**copy_environment(), **dict(environment)},
                pass_fds=[theirs.fileno(), traces],
            )
        self._socket = ours
        self.connection = Connection(os.dup(ours.fileno()))

    def send(self, job: Job) -> None:
        self.connection.send_bytes(pickle.dumps(job))

    def receive(self, seconds: float) -> Ended | Joins | Reported | None:
        """Return the next message, or None if the process has died.

        Args:
            seconds: the time limit of each read, for a process that is stopped while it sends.

        Raises:
            BlockingIOError: the time limit expired in the middle of a message.
        """
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))  # struct timeval
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            message: Ended | Joins | Reported = pickle.loads(self.connection.recv_bytes())
        except BlockingIOError:
            raise
        except (EOFError, OSError):  # even in the middle of a message
            return None
        return message

    def wait_for_death(self) -> str:
        """Return how the process ended, after it closed the connection."""
        try:
            code = self.popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return "killed, because it closed the connection to the launcher"
        if code >= 0:
            return f"exited with {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:  # most real-time signals have no name
            return f"killed by signal {-code}"

    def trace(self) -> str:
        """Return the last part of faulthandler's output."""
        size = os.fstat(self._traces.fileno()).st_size
        start = max(0, size - _MAX_TRACE_BYTES)
        return os.pread(self._traces.fileno(), _MAX_TRACE_BYTES, start).decode(errors="replace")

    def kill(self) -> None:
        self.popen.kill()
        self.close()

    def close(self) -> None:
        """Close the connection, at which the process ends, and kill it if it does not."""
        self.connection.close()
        self._socket.close()
        try:
            self.popen.wait(2)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._traces.close()


class Run:
    """A running launch, returned by :meth:`Launcher.start`.

    As a context manager, it kills ranks that are still running on exit.

    Args:
        take_back: keeps the processes for other runs if all are reusable, or ends them.
        is_reusable: whether the process of a rank with this outcome can be reused.
        processes: the processes of the ranks.
        hosted: the ranks of each process.
        timeout: seconds for everything; None for no limit.
        grace: seconds for the other ranks to end after one has failed.
        folder: a folder to remove at the end, or None.

    Attributes:
        world_size: the number of ranks.
    """

    def __init__(
        self,
        take_back: Callable[[list[Process], bool], None],
        is_reusable: Callable[[Outcome], bool],
        processes: list[Process],
        hosted: list[list[int]],
        *,
        timeout: float | None,
        grace: float,
        folder: str | None,
    ) -> None:
        self.world_size = sum(map(len, hosted))
        self._take_back = take_back
        self._is_reusable = is_reusable
        self._processes = processes
        self._hosted = hosted
        self._limit = f"not done within {timeout:g} s" if timeout is not None else ""
        self._deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self._grace = grace
        self._folder = folder
        self._outcomes: dict[int, Outcome] = {}
        self._reports: list[Reported] = []
        # For each unique id in use, the ranks and whether they have created the communicator.
        self._joins: dict[int, dict[int, bool]] = {}
        self._killed: set[int] = set()  # the ranks that timed out
        self._signalled = False  # by kill(): a rank that ends before the signal arrives dies later
        self._open = True

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the run and kill ranks that are still running."""
        if not self._open:
            return
        self._open = False
        outcomes = self._outcomes.values()
        reusable = len(outcomes) == self.world_size and not self._signalled
        reusable = reusable and all(map(self._is_reusable, outcomes))
        self._take_back(self._processes, reusable)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def gather_reports(self) -> list[Any]:
        """Wait until every rank has reported a value.

        Returns:
            One value of each rank, by rank; later values are returned by the next call.

        Raises:
            LaunchError: a rank ended or the deadline passed before the rank had reported.
        """
        ranks = range(self.world_size)
        while silent := set(ranks) - {rank for rank, _ in self._reports}:
            ended = any(rank in self._outcomes for rank in silent)
            if ended or not self._receive():
                outcomes = self.outcomes()
                raise LaunchError(self._describe("before all had reported"), outcomes)
        first = [next(r for r in self._reports if r.rank == rank) for rank in ranks]
        for report in first:
            self._reports.remove(report)
        return [report.value for report in first]

    def reports(self, silence: float | None = None) -> Iterator[tuple[int, Any]]:
        """Yield the values that ranks report, in order of arrival, until all ranks have ended.

        Args:
            silence: seconds without any report or ended rank after which the ranks are killed.
                Replaces the deadline of the launch.

        Yields:
            Pairs of a rank and the value that it reported.

        Raises:
            LaunchError: a rank failed or died, or there were no reports for too long.
        """
        failed = False
        while True:
            while self._reports:
                yield self._reports.pop(0)
            if failed or len(self._outcomes) == self.world_size:
                break
            if silence is not None:
                self._limit = f"no report within {silence:g} s"
                self._deadline = time.monotonic() + silence
            failed = not self._receive() or not all(o.ok for o in self._outcomes.values())
        self.results()

    def kill(self, rank: int, with_signal: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to a rank's process.

        Args:
            rank: the rank.
            with_signal: the signal.

        Returns:
            The time in seconds before sending the signal, by time.monotonic, which all processes
            share.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank: {rank} is not in [0, {self.world_size})")
        process = next(
            p for p, hosted in zip(self._processes, self._hosted, strict=True) if rank in hosted
        )
        self._signalled = True
        before = time.monotonic()
        process.popen.send_signal(with_signal)
        return before

    def outcomes(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for all ranks; at the deadline, kill ranks that are still running.

        Args:
            timeout: seconds from now; replaces the deadline of the launch.

        Returns:
            The outcome of each rank, by rank.
        """
        if timeout is not None:
            self._limit = f"not done within {timeout:g} s"
            self._deadline = time.monotonic() + timeout
        while len(self._outcomes) < self.world_size and self._receive():
            if any(not outcome.ok for outcome in self._outcomes.values()):
                self._deadline = min(self._deadline, time.monotonic() + self._grace)
        if len(self._outcomes) < self.world_size:
            self._expire()
        return [self._outcomes[rank] for rank in range(self.world_size)]

    def results(self) -> list[Any]:
        """Wait for all ranks.

        Returns:
            What the function returned, by rank.

        Raises:
            LaunchError: a rank failed, died or timed out.
        """
        outcomes = self.outcomes()
        if all(outcome.ok for outcome in outcomes):
            return [outcome.value for outcome in outcomes]
        cause = next((o.error for o in outcomes if o.error is not None), None)
        raise LaunchError(self._describe(), outcomes) from cause

    def _receive(self) -> bool:
        """Wait for messages and store them; return False when the deadline has passed."""
        waiting = {
            process.connection: index
            for index, process in enumerate(self._processes)
            if any(rank not in self._outcomes for rank in self._hosted[index])
        }
        while True:
            left = max(self._deadline - time.monotonic(), 0)
            ready = wait(list(waiting), min(left, _LONGEST_WAIT))
            if ready or left <= _LONGEST_WAIT:
                break
        for connection in ready:
            index = waiting[connection]  # type: ignore[index]
            left = max(self._deadline - time.monotonic(), _SHORTEST_READ)
            try:
                message = self._processes[index].receive(min(left, _LONGEST_WAIT))
            except BlockingIOError:
                self._expire()
                return False
            match message:
                case None:
                    self._note_death(index)
                case Reported() as report:
                    self._reports.append(report)
                case Joins(rank, unique_id, done):
                    self._joins.setdefault(unique_id, {})[rank] = done
                case Ended(outcome):
                    self._outcomes[outcome.rank] = outcome
        return bool(ready)

    def _note_death(self, index: int) -> None:
        process = self._processes[index]
        died = process.wait_for_death()
        for rank in self._hosted[index]:
            self._outcomes.setdefault(rank, Outcome(rank, died=died, trace=process.trace()))

    def _expire(self) -> None:
        """Make the remaining ranks dump their stacks, then kill them."""
        left = [
            index
            for index, hosted in enumerate(self._hosted)
            if any(rank not in self._outcomes for rank in hosted)
        ]
        for index in left:
            self._processes[index].popen.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        failed = any(not outcome.ok for outcome in self._outcomes.values())
        died = f"not done within {self._grace:g} s of a failure" if failed else self._limit
        for index in left:
            process = self._processes[index]
            process.popen.kill()
            process.popen.wait()
            for rank in self._hosted[index]:
                if rank not in self._outcomes:
                    self._killed.add(rank)
                    self._outcomes[rank] = Outcome(rank, died=died, trace=process.trace())

    def _describe(self, when: str = "") -> str:
        failed = [outcome for _, outcome in sorted(self._outcomes.items()) if not outcome.ok]
        lines = [f"{len(failed)} of {self.world_size} ranks failed {when}".rstrip()]
        for outcome in failed:
            what = outcome.died or f"{type(outcome.error).__name__}: {outcome.error}"
            lines += [f"--- rank {outcome.rank}: {what}", outcome.trace.rstrip()]
        return "\n".join([*lines, *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """Yield the known reasons why ranks timed out."""
        for unique_id, joins in sorted(self._joins.items()):
            waiting = [rank for rank in sorted(joins) if not joins[rank]]
            for rank in range(self.world_size) if waiting else ():
                if rank not in joins:
                    state = "was not done" if rank in self._killed else "had ended"
                    yield (
                        f"rank {rank} never created its communicator (unique id {unique_id}), for "
                        f"which {' and '.join(f'rank {one}' for one in waiting)} waited; it {state}"
                    )
        for rank in sorted(self._killed):
            trace = self._outcomes[rank].trace
            compiling = [name for part, name in _COMPILERS.items() if part in trace]
            if compiling:
                yield (
                    f"rank {rank} was compiling when the time was up ({compiling[0]}); compilation "
                    "counts against the timeout: raise it, or compile before the launch"
                )


class Options(TypedDict, total=False):
    """Launch options: the keyword arguments of :meth:`Launcher.start`."""

    provider: str
    threads: bool
    timeout: float | None
    grace: float
    unique_ids: int
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None
    fresh: bool


class Launcher:
    """Launches ranks on worker processes that are reused from one launch to the next.

    Processes are reused only for the same environment variables. After a launch that failed, or
    that sent a signal to a rank, its processes are replaced. As a context manager, it ends all
    processes on exit. They also end with the thread that started them. Not thread-safe.

    Args:
        rank_type: the subclass of :class:`Rank` to pass to functions.
    """

    def __init__(self, rank_type: type[Rank] = Rank) -> None:
        self._rank_type = rank_type
        self._idle: dict[Environment, list[Process]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all idle processes."""
        idle, self._idle = self._idle, {}
        for processes in idle.values():
            for process in processes:
                process.close()

    def is_reusable(self, outcome: Outcome) -> bool:
        """Return whether the process of a rank is reused after an outcome; for subclasses.

        Args:
            outcome: how the rank ended.

        Returns:
            True if the rank's function returned.
        """
        return outcome.ok

    def launch(
        self,
        world_size: int,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> list[T]:
        """Call ``fn(rank, *args, **kwargs)`` on every rank and wait for all ranks.

        Args:
            world_size: how many ranks to start.
            fn: the function, as for :func:`pynccl.testing.launch`.
            args: positional arguments after the rank; picklable.
            kwargs: keyword arguments; picklable.
            **options: as for :meth:`start`.

        Returns:
            What ``fn`` returned, by rank.

        Raises:
            LaunchError: a rank failed, died or timed out.
            TypeError, ValueError, RuntimeError: as for :meth:`start`.
        """
        with self.start(world_size, fn, args, kwargs, **options) as run:
            return run.results()

    def start(
        self,
        world_size: int,
        fn: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        provider: str = "host",
        threads: bool = False,
        timeout: float | None = 60.0,
        grace: float = _GRACE,
        unique_ids: int = 1,
        env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        fresh: bool = False,
    ) -> Run:
        """Start ``fn(rank, *args, **kwargs)`` on every rank without waiting for it.

        Args:
            world_size: how many ranks to start.
            fn: the function, as for :func:`pynccl.testing.launch`.
            args: positional arguments after the rank; picklable.
            kwargs: keyword arguments; picklable.
            provider: the provider of :attr:`Rank.comm`: ``"host"``, or ``"cuda"`` for NCCL on GPUs.
                With "cuda", torch is imported first if it is installed, so that its NCCL is used.
            threads: run the ranks as threads of one process instead of a process each.
            timeout: seconds for the whole launch, including process startup; None for no limit.
                Ranks that exceed it are killed, and the error shows their stacks.
            grace: seconds for the other ranks to end after one has failed.
            unique_ids: the number of unique ids to create; 0 if ``fn`` does not use any.
            env: environment variables in addition to the caller's, or a sequence of them, one for
                each rank (with ``threads``, the first applies).
            fresh: whether to use new processes and end them with the run.

        Returns:
            The run, for use in a ``with`` statement.

        Raises:
            TypeError: an argument has the wrong type, or ``fn``, ``args`` or ``kwargs`` cannot be
                pickled.
            ValueError: a number is negative, ``world_size`` is less than 1, or the length of
                ``env`` differs from it.
            RuntimeError: called while a rank's process imports the main module.
        """
        if _worker.is_importing_main():
            raise RuntimeError(
                "launch was called while a rank's process imports the main module; "
                'put the call under if __name__ == "__main__":'
            )
        check_integer("world_size", world_size, 1)
        check_integer("unique_ids", unique_ids, 0)
        check_str("provider", provider)
        if timeout is not None:
            check_seconds("timeout", timeout)
        check_seconds("grace", grace)
        payload = pickled(self._rank_type, fn, args, kwargs)
        variables = environments(env, world_size)
        hosted = [list(range(world_size))] if threads else [[rank] for rank in range(world_size)]
        processes: list[Process] = []
        folder = None
        try:
            for ranks in hosted:
                processes.append(self._process(variables[ranks[0]], fresh=fresh))
            folder = tempfile.mkdtemp(prefix="pynccl-launch-")
            job = Job(
                payload,
                main=_describe_main() if b"__main__" in payload else None,
                ranks=[],
                world_size=world_size,
                provider=provider,
                unique_ids=[],
                init_method=Path(folder, "store").as_uri(),
            )
            if unique_ids:
                job.unique_ids = self._make_ids(processes[0], unique_ids, provider)
            for process, job.ranks in zip(processes, hosted, strict=True):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died
                    process.send(job)
        except BaseException:
            self._take_back(processes, False)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return Run(
            self._take_back,
            self.is_reusable,
            processes,
            hosted,
            timeout=timeout,
            grace=grace,
            folder=folder,
        )

    def _process(self, environment: Environment, *, fresh: bool) -> Process:
        idle = self._idle.get(environment, [])
        while idle and not fresh:
            process = idle.pop(0)
            if process.popen.poll() is None:
                return process
            process.close()
        return self._start_process(environment, fresh=fresh)

    def _start_process(self, environment: Environment, *, fresh: bool) -> Process:
        return Process(environment, fresh=fresh)

    def _make_ids(self, process: Process, count: int, provider: str) -> list[bytes]:
        payload = pickled(Rank, _worker.make_ids, (count, provider), None)
        process.send(Job(payload, None, [0], 1, provider, [], ""))
        run = Run(
            self._take_back,
            self.is_reusable,
            [process],
            [[0]],
            timeout=_MAKE_IDS,
            grace=0,
            folder=None,
        )
        ids: list[bytes] = run.results()[0]
        return ids

    def _take_back(self, processes: list[Process], reusable: bool) -> None:
        for process in reversed(processes):
            if reusable and not process.fresh:
                self._idle.setdefault(process.environment, []).insert(0, process)
            elif reusable:
                process.close()  # lets it write the files of PYNCCL_TRACE and PYNCCL_RECORD
            else:
                process.kill()


def launch(
    world_size: int,
    fn: Callable[..., T],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Unpack[Options],
) -> list[T]:
    """Call ``fn(rank, *args, **kwargs)`` on every rank of a new launch and wait for all ranks.

    When it returns or raises, all processes have ended. Ranks write to the stdout and stderr of the
    caller.

    Args:
        world_size: how many ranks to start.
        fn: the function; its first argument is a :class:`Rank`. It must be picklable: defined at
            the top level of a module, or of a script whose work is guarded by
            ``if __name__ == "__main__"``.
        args: positional arguments after the rank; picklable.
        kwargs: keyword arguments; picklable.
        **options: provider, threads, timeout, grace, unique_ids and env of :meth:`Launcher.start`.

    Returns:
        What ``fn`` returned, by rank. It must be picklable.

    Raises:
        LaunchError: a rank raised, died or timed out. The text contains the traceback of each
            failed rank.
        TypeError, ValueError, RuntimeError: as for :meth:`Launcher.start`.
    """
    with Launcher() as launcher:
        return launcher.launch(world_size, fn, args, kwargs, **options)


def _describe_main() -> dict[str, Any]:
    """Describe how a worker imports this process's main module, as multiprocessing does."""
    data = multiprocessing.spawn.get_preparation_data("rank")
    return {key: value for key, value in data.items() if key in _MAIN}
