"""NumPy arrays in several processes, without torch: the unique id is passed through a queue.

Run: python examples/numpy_processes.py

The mean and variance over samples that are distributed over the ranks. They take two all_reduce
with AVG, the second on the result of the first. Each takes 2(n-1) steps in a ring and moves
2(n-1)/n N bytes per rank, with N = 24 here. Arrays are used in place, in host memory.

Prints:
rank 0 of 2: mean [1.5, 11.5, 21.5], variance [1.25, 1.25, 1.25]
rank 1 of 2: mean [1.5, 11.5, 21.5], variance [1.25, 1.25, 1.25]
"""

import multiprocessing
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

from pynccl import nccl

NRANKS = 2


def run(rank: int, ids: "Queue[nccl.UniqueId]") -> None:
    if rank == 0:
        unique_id = nccl.get_unique_id("host")
        for _ in range(NRANKS - 1):
            ids.put(unique_id)
    else:
        unique_id = ids.get()

    with nccl.Communicator(NRANKS, unique_id, rank, provider="host") as comm:
        samples = np.array([[0, 10, 20], [1, 11, 21]], dtype=np.float64) + 2 * rank
        mean = samples.mean(axis=0)
        comm.all_reduce(mean, nccl.AVG)
        variance = ((samples - mean) ** 2).mean(axis=0)
        comm.all_reduce(variance, nccl.AVG)
        line = f"rank {rank} of {NRANKS}: mean {mean.tolist()}, variance {variance.tolist()}\n"
        print(line, end="", flush=True)  # one write: the ranks share the terminal


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    ids: Queue[nccl.UniqueId] = spawn.Queue()
    # Daemons end with this process, so that no rank waits for a failed one.
    processes = [spawn.Process(target=run, args=(rank, ids), daemon=True) for rank in range(NRANKS)]
    for process in processes:
        process.start()
    running: dict[Any, SpawnProcess] = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
