"""One rank of one library: does what the benchmark's own process tells it over a socket.

    python -m benchmarks.host_rank LIBRARY NRANKS FOLDER bind|free [RANK]

mpiexec starts the ranks of MPICH, the benchmark those of the others. A rank that waits for its next
order sleeps in a read, so that the library whose turn it is has the machine for itself.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path

from benchmarks.host_libraries import LIBRARIES, Call, Library
from benchmarks.host_orders import SOCKET, Failed, Hello, Sample
from benchmarks.host_rows import Buffers, Row

__all__ = ["main"]


class _Rank:
    def __init__(self, library: Library, rank: int) -> None:
        self._library = library
        self._rank = rank
        self._call: Call | None = None

    def obey(self, order: object) -> object:
        match order:
            case Row():
                return self._prepare(order)
            case Sample():
                return self._measure(order)
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

    def _measure(self, sample: Sample) -> float:
        """Seconds of one call on average."""
        call = self._call
        assert call is not None
        if sample.warm:
            call()
        self._library.barrier()
        start = time.perf_counter()
        for _ in range(sample.iterations):
            call()
        return (time.perf_counter() - start) / sample.iterations


def main() -> None:
    """Serve until the benchmark closes its end."""
    name, nranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if name == "mpich":
        from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

        rank = MPI.COMM_WORLD.rank
    else:
        rank = int(sys.argv[5])
    if sys.argv[4] == "bind":
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    connection = Client(str(folder / SOCKET), "AF_UNIX")
    try:
        library = LIBRARIES[name](rank, nranks, folder / f"{name}-{nranks}")
        connection.send(Hello(name, rank, library.version))
        gc.disable()
        gc.freeze()
        _serve(connection, _Rank(library, rank))
    except Exception:
        connection.send(Failed(f"{name}, rank {rank}: {traceback.format_exc()}"))


def _serve(connection: Connection, rank: _Rank) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(rank.obey(order))


if __name__ == "__main__":
    main()
