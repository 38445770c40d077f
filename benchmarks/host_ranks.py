"""The ranks of one library, which follow the orders of the process that runs the benchmark.

    python -m benchmarks.host_ranks NRANKS FOLDER bind|free     # a rank of MPICH, from mpiexec

pynccl.testing launches the ranks; only those of MPICH must come from mpiexec. Orders and answers
pass a socket: a Row is to be prepared, (iterations, warm) is a sample of it. A rank that waits for
its next order sleeps in a read, so that the library that is timed has the machine for itself.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from types import TracebackType

from benchmarks.host_libraries import LIBRARIES, Call, Library
from benchmarks.host_rows import Buffers, Row
from benchmarks.ranks import BenchmarkError, RankError
from pynccl import testing

__all__ = ["World", "find_mpiexec", "main"]

_SILENCE = 300.0  # seconds without an answer
_SOCKET = "socket"  # in the folder of the run
_START = 120.0
# For torch, NumPy and others that use a thread for every CPU.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def find_mpiexec() -> str | None:
    """The mpiexec of this environment, else that of the path."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


class World:
    """One library's ranks. They run only between an order and its answers.

    Attributes:
        version: of the library.
    """

    def __init__(self, library: str, nranks: int, *, bind: bool = False) -> None:
        self.library = library
        self._bind = bind
        self._nranks = nranks
        self._folder = tempfile.TemporaryDirectory(prefix="hostbench-")
        self._launcher = testing.Launcher()
        self._run: testing.Run | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._ranks: list[Connection] = []
        try:
            self.version = self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> str:
        folder, nranks = self._folder.name, self._nranks
        with Listener(str(Path(folder, _SOCKET)), "AF_UNIX", backlog=nranks) as listener:
            if self.library == "mpich":
                mpiexec = find_mpiexec()
                assert mpiexec
                command = [
                    mpiexec,
                    "-n",
                    str(nranks),
                    sys.executable,
                    "-m",
                    "benchmarks.host_ranks",
                ]
                command += [str(nranks), folder, "bind" if self._bind else "free"]
                self._mpiexec = subprocess.Popen(command, env={**os.environ, **_THREADS})
            else:
                self._run = self._launcher.start(
                    nranks,
                    _serve_world,
                    (self.library, folder, self._bind),
                    unique_ids=0,
                    timeout=None,
                    env=_THREADS,
                )
            listener._listener._socket.settimeout(_START)  # type: ignore[attr-defined]
            try:
                self._ranks = [listener.accept() for _ in range(nranks)]
            except TimeoutError:
                raise self._error(f"not all ranks have connected within {_START:g} s") from None
        return str(self._answers()[0])

    def prepare(self, row: Row) -> bool:
        """Check a row; false where the library has no such operation.

        Raises:
            BenchmarkError: the result was wrong.
        """
        answers = self._ask(row)
        if None in answers:
            return False
        if wrong := "; ".join(filter(None, map(str, answers))):
            raise BenchmarkError(f"{self.library}, {row}: {wrong}")
        return True

    def sample(self, iterations: int, *, warm: bool) -> float:
        """Seconds of one call: the mean over iterations, the maximum over ranks."""
        return max(float(str(answer)) for answer in self._ask((iterations, warm)))

    def close(self) -> None:
        """Close the connections, at which ranks end, and kill those that do not."""
        for connection in self._ranks:
            connection.close()
        if self._run:
            self._run.close()
        self._launcher.close()
        if self._mpiexec:
            try:
                self._mpiexec.wait(10)
            except subprocess.TimeoutExpired:
                self._mpiexec.kill()
                self._mpiexec.wait()
        self._folder.cleanup()

    def _error(self, what: str) -> RankError:
        """An error, with the tracebacks of the ranks that have failed."""
        for outcome in self._run.outcomes(timeout=1) if self._run else []:
            if outcome.died or outcome.error:
                what += f"\nrank {outcome.rank}: {outcome.died}\n{outcome.trace}"
        return RankError(f"{self.library}: {what}")

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, order: object) -> list[object]:
        for connection in self._ranks:
            connection.send(order)
        return self._answers()

    def _answers(self) -> list[object]:
        answers: list[object] = []
        waiting = list(self._ranks)
        while waiting:
            ready = wait(waiting, _SILENCE)
            if not ready:
                raise RankError(f"{self.library}: no answer within {_SILENCE:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    answer = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._error("a rank has died") from None
                if isinstance(answer, RankError):
                    raise answer
                answers.append(answer)
                waiting.remove(connection)
        return answers


class _Rank:
    def __init__(self, library: Library, rank: int) -> None:
        self._library = library
        self._rank = rank
        self._call: Call | None = None

    def obey(self, order: object) -> object:
        match order:
            case Row():
                return self._prepare(order)
            case int(iterations), bool(warm):
                return self._measure(iterations, warm=warm)
        raise TypeError(f"no such order: {order!r}")

    def _prepare(self, row: Row) -> str | None:
        """Make the buffers and check one call on them; what is wrong, or '', or None: no call."""
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
        return f"{wrong} bytes are wrong on rank {self._rank}" if wrong else ""

    def _measure(self, iterations: int, *, warm: bool) -> float:
        """Seconds of one call on average."""
        call = self._call
        assert call is not None
        if warm:
            call()
        self._library.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            call()
        return (time.perf_counter() - start) / iterations


def main() -> None:
    """Serve as a rank of MPICH."""
    from mpi4py import MPI

    nranks, folder, bind = sys.argv[1:]
    _serve("mpich", MPI.COMM_WORLD.rank, int(nranks), Path(folder), bind=bind == "bind")


def _serve_world(rank: testing.Rank, name: str, folder: str, bind: bool) -> None:
    """Serve as a rank of another library, until the benchmark closes its end of the socket."""
    _serve(name, rank.rank, rank.world_size, Path(folder), bind=bind)


def _serve(name: str, rank: int, nranks: int, folder: Path, *, bind: bool) -> None:
    if bind:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    connection = Client(str(folder / _SOCKET), "AF_UNIX")
    try:
        library = LIBRARIES[name](rank, nranks, folder / f"{name}-{nranks}")
        connection.send(library.version)
        gc.disable()
        gc.freeze()
        _follow_orders(connection, _Rank(library, rank))
    except Exception:
        connection.send(RankError(f"{name}, rank {rank}: {traceback.format_exc()}"))


def _follow_orders(connection: Connection, rank: _Rank) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(rank.obey(order))


if __name__ == "__main__":
    main()
