"""The process in which ranks run: executes the launcher's jobs and reports their outcomes.

It is cheap to import; jobs import what they require.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing.spawn
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pynccl.testing._rank import Outcome, Rank

__all__ = ["Ended", "Job", "Joins", "Reported", "is_importing_main", "main", "make_ids"]

_PR_SET_PDEATHSIG = 1
_importing_main = False


@dataclass
class Job:
    """One function call by some ranks of a launch, each in its own thread.

    Attributes:
        payload: (type of the rank, function, args, kwargs), pickled. The worker unpickles it
            separately from the job, so it can report a failure to do so.
        main: the data to import the launcher's main module, for multiprocessing.spawn.prepare; None
            if the payload does not require it.
    """

    payload: bytes
    main: dict[str, Any] | None
    ranks: list[int]
    world_size: int
    provider: str
    unique_ids: list[bytes]
    init_method: str


class _Call(NamedTuple):
    """The unpickled payload of a job."""

    rank_type: type[Rank]
    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Reported(NamedTuple):
    """A message to the launcher: a rank reports a value."""

    rank: int
    value: Any


class Joins(NamedTuple):
    """A message to the launcher: a rank creates a communicator, or has created it."""

    rank: int
    unique_id: int  # its index
    done: bool


class Ended(NamedTuple):
    """A message to the launcher: a rank has ended."""

    outcome: Outcome


def is_importing_main() -> bool:
    """Return whether this process is a worker that is importing the launcher's main module."""
    return _importing_main


def make_ids(_: Rank, count: int, provider: str) -> list[bytes]:
    """Create unique ids, in rank 0's process, before the job itself."""
    from pynccl import nccl

    return [bytes(nccl.get_unique_id(provider)) for _ in range(count)]


class Worker:
    """Runs jobs until the launcher closes the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._main: dict[str, Any] | None = None

    def serve(self) -> None:
        while True:
            try:
                job: Job = pickle.loads(self._connection.recv_bytes())
            except EOFError:
                return
            try:
                call = self._load(job)
            except BaseException as error:
                _flush()
                for rank in job.ranks:
                    self._send(Ended(_failure(rank, error)))
                continue
            if len(job.ranks) == 1:
                self._run(job, job.ranks[0], call)
                continue
            threads = [
                threading.Thread(target=self._run, args=(job, rank, call), name=f"rank {rank}")
                for rank in job.ranks
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _load(self, job: Job) -> _Call:
        global _importing_main  # noqa: PLW0603
        if job.main is not None and job.main != self._main:
            _importing_main = True
            try:
                multiprocessing.spawn.prepare(job.main)
            finally:
                _importing_main = False
            self._main = job.main
        if job.provider == "cuda":
            with contextlib.suppress(ImportError):
                importlib.import_module("torch")  # first, so that its copy of NCCL is used
        return _Call(*pickle.loads(job.payload))

    def _run(
        self,
        job: Job,
        number: int,
        call: _Call,
    ) -> None:
        def report(value: object) -> None:
            self._send(Reported(number, value))

        rank = call.rank_type(
            number, job.world_size, job.provider, job.unique_ids, job.init_method, report
        )
        rank._joins = lambda unique_id, done: self._send(Joins(number, unique_id, done))
        try:
            try:
                value = call.function(rank, *call.args, **call.kwargs)
            except BaseException:
                rank._finish(failed=True)
                raise
            rank._finish(failed=False)
            message = pickle.dumps(Ended(Outcome(number, value=value)))
        except BaseException as error:
            message = pickle.dumps(Ended(_failure(number, error)))
        _flush()
        self._send_bytes(message)

    def _send(self, message: object) -> None:
        self._send_bytes(pickle.dumps(message))

    def _send_bytes(self, message: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(message)


def _flush() -> None:
    """Write what the function has printed: the process ends without the interpreter's flush."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, broken, closed
            stream.flush()


def _failure(rank: int, error: BaseException) -> Outcome:
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Outcome(rank, error=error, trace=trace)


def main(descriptor: int, traces: int, parent: int) -> None:
    """Serve the launcher at the other end of a socket, until it ends.

    Args:
        descriptor: the file descriptor of the socket.
        traces: the file that faulthandler writes to on a crash and on SIGUSR1.
        parent: the launcher's process id.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    faulthandler.enable(file=traces)
    faulthandler.register(signal.SIGUSR1, file=traces, all_threads=True)
    connection = Connection(descriptor)
    # The launcher detects the end of this process by it, regardless of child processes.
    os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=connection.close)
    Worker(connection).serve()
    if recorder := sys.modules.get("pynccl.tools.trace.recorder"):
        recorder.end_from_environment()
    # Not by ending the interpreter, which would wait for threads of a failed job.
    os._exit(0)
