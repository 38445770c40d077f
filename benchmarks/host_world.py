"""The ranks of one library, as processes, seen from the process that runs the benchmark.

pynccl.testing launches them; only those of MPICH, which must come from mpiexec, are started here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import TracebackType

from benchmarks.host_orders import SOCKET, Failed, Ready, Sample
from benchmarks.host_rank import serve
from benchmarks.host_rows import Row
from benchmarks.ranks import BenchmarkError, RankError
from pynccl.testing import Launcher, Run

__all__ = ["World", "find_mpiexec"]

_SILENCE = 300.0  # seconds without an answer
_START = 120.0


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
        self._launcher = Launcher()
        self._run: Run | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._ranks: list[Connection] = []
        try:
            self.version = self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> str:
        folder, nranks = self._folder.name, self._nranks
        with Listener(str(Path(folder, SOCKET)), "AF_UNIX", backlog=nranks) as listener:
            if self.library == "mpich":
                mpiexec = find_mpiexec()
                assert mpiexec
                command = [mpiexec, "-n", str(nranks), sys.executable, "-m", "benchmarks.host_rank"]
                command += [str(nranks), folder, "bind" if self._bind else "free"]
                self._mpiexec = subprocess.Popen(command, env={**os.environ, **_THREADS})
            else:
                self._run = self._launcher.start(
                    nranks,
                    serve,
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
        return next(answer.version for answer in self._answers() if isinstance(answer, Ready))

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
        return max(float(str(answer)) for answer in self._ask(Sample(iterations, warm)))

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
                if isinstance(answer, Failed):
                    raise RankError(answer.text)
                answers.append(answer)
                waiting.remove(connection)
        return answers


# For torch, NumPy and others that use a thread for every CPU.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
