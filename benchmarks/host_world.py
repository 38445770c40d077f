"""The ranks of all libraries, as processes, seen from the process that runs the benchmark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import TracebackType

from benchmarks.host_orders import SOCKET, Failed, Hello, Sample
from benchmarks.host_rows import Row
from benchmarks.launcher import BenchmarkError, RankError

__all__ = ["World", "find_mpiexec"]

_PATIENCE = 300.0  # seconds without an answer
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
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ranks: list[Connection] = []
        try:
            self.version = self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> str:
        folder, nranks = self._folder.name, self._nranks
        rank = [
            *(sys.executable, "-m", "benchmarks.host_rank", self.library, str(nranks), folder),
            "bind" if self._bind else "free",
        ]
        with Listener(str(Path(folder, SOCKET)), "AF_UNIX", backlog=nranks) as listener:
            if self.library == "mpich":
                mpiexec = find_mpiexec()
                assert mpiexec
                commands = [[mpiexec, "-n", str(nranks), *rank]]
            else:
                commands = [[*rank, str(number)] for number in range(nranks)]
            for command in commands:
                self._processes.append(subprocess.Popen(command, env={**os.environ, **_THREADS}))
            listener._listener._socket.settimeout(_START)  # type: ignore[attr-defined]
            try:
                self._ranks = [listener.accept() for _ in range(nranks)]
            except TimeoutError:
                raise RankError(f"not all ranks of {self.library} have come") from None
        return next(answer.version for answer in self._answers() if isinstance(answer, Hello))

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
        """Let the ranks end, and end those that do not."""
        for connection in self._ranks:
            connection.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

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
            ready = wait(waiting, _PATIENCE)
            if not ready:
                raise RankError(f"nothing was heard of {self.library} for {_PATIENCE:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    answer = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise RankError(f"a rank of {self.library} has died") from None
                if isinstance(answer, Failed):
                    raise RankError(answer.text)
                answers.append(answer)
                waiting.remove(connection)
        return answers


# Of torch, NumPy and whatever else would take a thread for every CPU.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
