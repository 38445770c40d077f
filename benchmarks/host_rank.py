"""One rank of one library: follows the orders that the benchmark's own process sends by a socket.

    python -m benchmarks.host_rank NRANKS FOLDER bind|free     # a rank of MPICH, from mpiexec

The ranks of the other libraries are launched by pynccl.testing. A rank that waits for its next
order sleeps in a read, so that the library that is timed has the machine for itself.
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
from benchmarks.host_orders import SOCKET, Failed, Ready, Sample
from benchmarks.host_rows import Buffers, Row
from pynccl import testing

__all__ = ["main", "serve"]


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
    """Serve as a rank of MPICH."""
    from mpi4py import MPI

    nranks, folder, bind = sys.argv[1:]
    _serve("mpich", MPI.COMM_WORLD.rank, int(nranks), Path(folder), bind=bind == "bind")


def serve(rank: testing.Rank, name: str, folder: str, bind: bool) -> None:
    """Serve as a rank of another library, until the benchmark closes its end of the socket."""
    _serve(name, rank.rank, rank.world_size, Path(folder), bind=bind)


def _serve(name: str, rank: int, nranks: int, folder: Path, *, bind: bool) -> None:
    if bind:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    connection = Client(str(folder / SOCKET), "AF_UNIX")
    try:
        library = LIBRARIES[name](rank, nranks, folder / f"{name}-{nranks}")
        connection.send(Ready(name, rank, library.version))
        gc.disable()
        gc.freeze()
        _follow_orders(connection, _Rank(library, rank))
    except Exception:
        connection.send(Failed(f"{name}, rank {rank}: {traceback.format_exc()}"))


def _follow_orders(connection: Connection, rank: _Rank) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(rank.obey(order))


if __name__ == "__main__":
    main()
