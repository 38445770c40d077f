"""The process in which ranks run: takes jobs from the launcher, answers with what each rank
returned.

Light to import: a job imports what it needs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pynccl import nccl
    from tests.support.memory import Memory

_PR_SET_PDEATHSIG = 1


@dataclass
class Job:
    """One call of a test's function by some ranks of a world, each in a thread of its own."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    ranks: list[int]
    nranks: int
    provider: str
    unique_ids: list[bytes]


@dataclass
class Outcome:
    """How one rank ended: with a value, an exception, or the death of its process."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    died: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None and not self.died

    @property
    def lacks(self) -> str:
        """What the loaded NCCL is too old for, where that is all that went wrong; nothing was sent
        then.
        """
        text = str(self.error)
        return text if re.search(r"NCCL (since )?[\d.]+[;,] the loaded", text) else ""


def wait_for(path: str) -> None:
    """Wait until a file is there: for a rank that comes when another one has seen something."""
    deadline = time.monotonic() + 30
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"nobody made {path}"
        time.sleep(0.005)


@dataclass
class Rank:
    """What a test's function gets as its first argument."""

    rank: int
    nranks: int
    provider: str
    unique_ids: list[bytes]
    tell: Callable[[Any], None] = field(repr=False)
    """Sends a value to Run.hear() in the test."""
    _comm: nccl.Communicator | None = None

    @property
    def device(self) -> int | None:
        from pynccl import libraries

        if self.provider != "cuda":
            return None
        return self.rank % len(libraries.load("cuda").device_names())

    def communicator(self, unique_id: int = 0, **options: Any) -> nccl.Communicator:  # noqa: ANN401
        """Make this rank's communicator of the world, with one of the ids, by number."""
        from pynccl import nccl

        options.setdefault("provider", self.provider)
        options.setdefault("device", self.device)
        return nccl.Communicator(self.nranks, self.unique_ids[unique_id], self.rank, **options)

    @property
    def comm(self) -> nccl.Communicator:
        """The communicator of the first id, made when first asked for, closed after the job."""
        # functools.cached_property is no help: before Python 3.12 one lock serves all ranks, which
        # wait for each other.
        if self._comm is None:
            self._comm = self.communicator()
        return self._comm

    @property
    def memory(self) -> Memory:
        from tests.support.memory import memory_of

        return memory_of(self.provider, self.device)

    def stream(self) -> nccl.Stream:
        from pynccl import nccl

        return nccl.Stream(self.provider, device=self.device)

    def event(self, *, timing: bool = False) -> nccl.Event:
        from pynccl import nccl

        return nccl.Event(self.provider, device=self.device, timing=timing)

    def finish(self, *, failed: bool) -> None:
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort() if failed else comm.close()


def make_ids(_: Rank, count: int, provider: str) -> list[bytes]:
    """The job that makes the unique ids for the next one."""
    from pynccl import nccl

    return [bytes(nccl.get_unique_id(provider)) for _ in range(count)]


class Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Run jobs until the launcher closes the connection."""
        while True:
            try:
                job: Job = self._connection.recv()
            except EOFError:
                return
            except (
                BaseException
            ) as error:  # the job cannot be unpickled: its module does not import
                self._send("done", self._failure(-1, error))
                continue
            if len(job.ranks) == 1:
                self._run(job, job.ranks[0])
                continue
            threads = [threading.Thread(target=self._run, args=(job, rank)) for rank in job.ranks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _run(self, job: Job, number: int) -> None:
        def tell(value: object) -> None:
            self._send("told", (number, value))

        rank = Rank(number, job.nranks, job.provider, job.unique_ids, tell)
        try:
            try:
                if job.provider == "cuda":
                    importlib.import_module("torch")  # first, so that its NCCL is the one
                outcome = Outcome(number, value=job.function(rank, *job.args))
            except BaseException:
                rank.finish(failed=True)
                raise
            rank.finish(failed=False)
        except BaseException as error:
            outcome = self._failure(number, error)
        self._send("done", outcome)

    @staticmethod
    def _failure(number: int, error: BaseException) -> Outcome:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return Outcome(number, error=error, trace=trace)

    def _send(self, kind: str, value: object) -> None:
        with self._lock:
            self._connection.send((kind, value))


def main(descriptor: int, parent: int) -> None:
    """Serve the launcher at the other end of a socket, and die with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    Worker(Connection(descriptor)).serve()
    # Not through the interpreter's end: a thread that a failed job left behind would hold it up.
    os._exit(0)
