"""The ranks of one library, which execute the orders of the process that runs the benchmark.

    python -m benchmarks.host_ranks FOLDER     # a rank of MPICH, from mpiexec

pynccl.testing launches the ranks, except those of MPICH, which mpiexec launches. Orders and answers
pass through a socket: a Row is prepared, a number of calls is sampled. A rank sleeps in a read
until its next order, so it does not disturb the library that is timed. Every rank is a session of
its own, as mpiexec makes it: with sched_autogroup, Linux divides the CPUs between sessions first.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path

from benchmarks import libraries
from benchmarks.libraries import Call, Library
from benchmarks.operations import Buffers, Row
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Elapsed, HostClock
from pynccl import testing

__all__ = ["World", "find_mpiexec", "main", "world"]

_SILENCE = 300.0  # seconds without an answer
_START = 120.0
# For torch, NumPy and others that use a thread for every CPU.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def find_mpiexec() -> str | None:
    """Return the mpiexec next to this Python, else that of PATH."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


@contextlib.contextmanager
def world(library: str, nranks: int, compute: float = 0.0) -> Iterator[World]:
    """Start a library's ranks, and end them after the block.

    Args:
        library: a key of benchmarks.libraries.HOST, or ``"mpich"``.
        nranks: the number of ranks.
        compute: the seconds of CPU time that each rank uses before each call.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hostbench-"))
        listener = stack.enter_context(Listener(f"{folder}/socket", "AF_UNIX", backlog=nranks))
        run = None
        if library == "mpich":
            command = [str(find_mpiexec()), "-n", str(nranks), sys.executable]
            command += ["-m", "benchmarks.host_ranks", folder]
            process = subprocess.Popen(command, env={**os.environ, **_THREADS})
            stack.callback(_end, process)
        else:
            launcher = stack.enter_context(testing.Launcher())
            run = launcher.start(nranks, _serve, (library, folder), timeout=None, env=_THREADS)
            stack.enter_context(run)
        listener._listener._socket.settimeout(_START)  # type: ignore[attr-defined]
        try:
            ranks = [stack.enter_context(listener.accept()) for _ in range(nranks)]
        except TimeoutError:
            raise BenchmarkError(f"{library}: a rank has not connected in {_START:g} s") from None
        yield World(library, ranks, run, compute)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for MPICH's ranks, which end when their connections close, or kill them."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class World:
    """One library's ranks, which run only between an order and its answers.

    Attributes:
        library: the name of the library.
        version: its version.
    """

    def __init__(
        self, library: str, ranks: list[Connection], run: testing.Run | None, compute: float
    ) -> None:
        self.library = library
        self._ranks = ranks
        self._run = run
        self._compute = compute
        self.version = str(self._answers()[0])

    def prepare(self, row: Row) -> bool:
        """Check a row. Return False if the library lacks the operation.

        Raises:
            BenchmarkError: the result was wrong.
        """
        answers = self._ask(row)
        if None in answers:
            return False
        if wrong := "; ".join(filter(None, map(str, answers))):
            raise BenchmarkError(f"{self.library}, {row}: {wrong}")
        return True

    def sample(self, calls: int) -> Elapsed:
        """Return the mean over a number of calls, the maximum over the ranks."""
        return Elapsed(max(float(str(answer)) for answer in self._ask((calls, self._compute))))

    def _ask(self, order: Row | tuple[int, float]) -> list[object]:
        for connection in self._ranks:
            connection.send(order)
        return self._answers()

    def _answers(self) -> list[object]:
        answers: list[object] = []
        waiting = list(self._ranks)
        while waiting:
            ready = wait(waiting, _SILENCE)
            if not ready:
                raise BenchmarkError(f"{self.library}: no answer within {_SILENCE:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    answer = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise BenchmarkError(f"{self.library}: a rank has died{self._why()}") from None
                if isinstance(answer, BenchmarkError):
                    raise answer
                answers.append(answer)
                waiting.remove(connection)
        return answers

    def _why(self) -> str:
        """Return the tracebacks of the failed ranks."""
        outcomes = self._run.outcomes(timeout=1) if self._run else []
        return "".join(f"\nrank {o.rank}: {o.died}\n{o.trace}" for o in outcomes if not o.ok)


class _Rank:
    def __init__(self, library: Library, rank: int) -> None:
        self._library = library
        self._rank = rank
        self._call: Call | None = None
        self._share = 1.0

    def prepare(self, row: Row) -> str | None:
        """Check one call on new buffers. Return what is wrong, '', or None without a call."""
        self._call = None
        gc.collect()
        buffers = Buffers(row, self._rank)
        buffers.fill()
        call = self._library.call(buffers)
        if call is None:
            return None
        self._library.barrier()
        call()
        wrong = buffers.wrong()
        buffers.clear()
        self._call, self._buffers = call, buffers
        self._share = 0.5 if row.operation == "ping_pong" else 1.0  # one way of a round trip
        return wrong

    def sample(self, calls: int, compute: float) -> float:
        """Return the mean seconds of a call; several calls follow one that is not timed.

        With computation, a call includes it.
        """
        call = self._call
        assert call is not None
        if calls > 1:
            call()
        self._library.barrier()
        if compute:
            return HostClock().measure(partial(_compute_and_call, compute, call), calls).seconds
        return self._share * HostClock().measure(call, calls).seconds


def _compute_and_call(seconds: float, call: Call) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    call()


def main() -> None:
    """Serve as a rank of MPICH."""
    (folder,) = sys.argv[1:]
    _serve(None, "mpich", folder)


def _serve(rank: testing.Rank | None, name: str, folder: str) -> None:
    """Serve as a rank of a library, until the benchmark closes its end of the socket."""
    with contextlib.suppress(PermissionError):  # MPICH's ranks have sessions of their own already
        os.setsid()
    with Client(f"{folder}/socket", "AF_UNIX") as connection:
        try:
            library: Library
            if rank:
                library, number = libraries.HOST[name](rank), rank.rank
            else:
                library = mpich = libraries.Mpich()
                number = mpich.rank
            connection.send(library.version)
            gc.disable()
            gc.freeze()
            _follow_orders(connection, _Rank(library, number))
        except Exception:
            connection.send(BenchmarkError(f"{name}: {traceback.format_exc()}"))


def _follow_orders(connection: Connection, rank: _Rank) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(rank.prepare(order) if isinstance(order, Row) else rank.sample(*order))


if __name__ == "__main__":
    main()
