"""Recovery and growth: a rank dies, the survivors continue, and a new one joins.

Run: python examples/elastic.py

Three workers repeatedly average a vector of N = 1024 numbers. One of them is killed. On CPUs, the
others' all_reduce ends with an error within a second. recover() creates a communicator of the
surviving ranks: they determine the membership by themselves, keep their order and continue. (On
GPUs they would need a store: recover(store=...).) The supervisor then starts a new worker, and the
communicator grows with grow() and join(). Every mean is checked.

Prints:
3 ranks: mean 2.0
2 ranks: mean 1.5
3 ranks: mean 2.0
"""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from pynccl import nccl

NRANKS = 3
VICTIM = 1


def train(comm: nccl.Communicator, steps: int = 10) -> None:
    for _ in range(steps):
        gradient = np.full(1024, comm.rank + 1.0, np.float32)
        comm.all_reduce(gradient, nccl.AVG)
        assert (gradient == (comm.nranks + 1) / 2).all()
    if comm.rank == 0:
        print(f"{comm.nranks} ranks: mean {gradient[0]}", flush=True)


def work(rank: int, unique_id: nccl.UniqueId, supervisor: Connection) -> None:
    comm = nccl.Communicator(NRANKS, unique_id, rank, provider="host")
    train(comm)
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(comm, steps=1_000_000_000)
    except nccl.NcclRemoteError:
        smaller = comm.recover(timeout=10)

    train(smaller)
    invitation = smaller.get_unique_id() if smaller.rank == 0 else None
    if invitation is not None:
        supervisor.send(invitation)
    with smaller, smaller.grow(NRANKS, invitation) as whole:
        train(whole)


def come(unique_id: nccl.UniqueId) -> None:
    with nccl.Communicator.join(NRANKS, unique_id, NRANKS - 1, provider="host") as whole:
        train(whole)


def finish(processes: list[BaseProcess]) -> None:
    """Wait for all processes; raise when the first one fails."""
    running: dict[Any, BaseProcess] = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                raise SystemExit("a rank failed")


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    unique_id = nccl.get_unique_id("host")
    pipes = [spawn.Pipe() for _ in range(NRANKS)]
    # Daemons end with the supervisor, even if it fails.
    workers = [
        spawn.Process(target=work, args=(rank, unique_id, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    for _, theirs in pipes:
        theirs.close()  # so that recv() ends when the worker does

    ended = wait([worker.sentinel for worker in workers])
    left = [rank for rank, worker in enumerate(workers) if worker.sentinel not in ended]
    newcomer = spawn.Process(target=come, args=(pipes[left[0]][0].recv(),), daemon=True)
    newcomer.start()
    finish([*(workers[rank] for rank in left), newcomer])


if __name__ == "__main__":
    main()
