"""A halo exchange inside a stencil kernel compiled by Numba: put and signal, without host calls.

Run: python examples/device/numba_halo.py

A plate is heated on its left side. Each rank holds some of its rows, plus one row on either side
for its neighbours' edges. The kernel performs all steps: it puts 8 bytes per column into each
neighbour's memory, signals, waits for the neighbours' signals and updates. The rows are
double-buffered in two halves of the memory: a neighbour that is a step ahead writes into the other
half. With send and recv, each step takes one call of pynccl and one of Numba.

Prints, with other times:
rank 0 of 2: 200 steps of 64 x 64 are correct; kernel 3.7 us a step, send and recv 12.9 us
"""

import numba
import numpy as np
from ranks import World, run

from pynccl import nccl
from pynccl.device import numba as peers

ROWS, COLUMNS, STEPS = 32, 64, 200  # rows of each rank
HOT = 100.0
UPPER, LOWER = 0, 1  # words: signals from these neighbours


@numba.njit(nogil=True)
def update(old, new):
    """One step of heat conduction for all cells except those at the edges."""
    for i in range(1, old.shape[0] - 1):
        for j in range(1, old.shape[1] - 1):
            around = old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1]
            new[i, j] = old[i, j] + 0.2 * (around - 4 * old[i, j])


@numba.njit(nogil=True)
def steps_of_kernel(halves, pointers, signals, rank, nranks, steps, done):
    """Steps with the halo exchange inside; done is the number of steps in earlier calls."""
    rows, columns = halves.shape[1] - 2, halves.shape[2]
    for step in range(done, done + steps):
        half, begin = halves[step % 2], step % 2 * (rows + 2) * columns
        if rank > 0:
            place = begin + (rows + 1) * columns
            peers.put_signal(pointers, signals, rank - 1, place, half[1], LOWER)
        if rank < nranks - 1:
            peers.put_signal(pointers, signals, rank + 1, begin, half[rows], UPPER)
        if rank > 0:
            peers.wait(signals, rank, step + 1, UPPER)
        if rank < nranks - 1:
            peers.wait(signals, rank, step + 1, LOWER)
        update(half, halves[(step + 1) % 2])


def steps_of_library(comm: nccl.Communicator, halves: np.ndarray, steps: int) -> None:
    """The same steps with send and recv."""
    for step in range(steps):
        half = halves[step % 2]
        with nccl.group():
            for peer, edge, halo in ((comm.rank - 1, 1, 0), (comm.rank + 1, -2, -1)):
                if 0 <= peer < comm.nranks:
                    comm.send(half[edge], peer)
                    comm.recv(half[halo], peer)
        update(half, halves[(step + 1) % 2])


def heat(world: World) -> str:
    comm = world.comm
    memory = world.symmetric([2, ROWS + 2, COLUMNS], "float64")
    signals = world.symmetric([2], "int64")
    halves = memory.tensor.numpy()
    halves[:, :, 0] = HOT
    apart = halves.copy()
    tables = memory.pointers.numpy(), signals.pointers.numpy()
    done = 0

    def kernel() -> None:
        nonlocal done
        steps_of_kernel(halves, *tables, comm.rank, comm.nranks, STEPS, done)
        done += STEPS

    times = [
        world.median(call) / STEPS
        for call in (kernel, lambda: steps_of_library(comm, apart, STEPS))
    ]
    np.testing.assert_array_equal(halves[:, 1:-1], apart[:, 1:-1])

    plate = np.zeros((2, comm.nranks * ROWS + 2, COLUMNS))
    plate[:, :, 0] = HOT
    for step in range(done):
        update(plate[step % 2], plate[(step + 1) % 2])
    own = slice(1 + comm.rank * ROWS, 1 + (comm.rank + 1) * ROWS)
    np.testing.assert_array_equal(halves[done % 2, 1:-1], plate[done % 2, own])
    size = f"{comm.nranks * ROWS} x {COLUMNS}"
    return (
        f"rank 0 of {comm.nranks}: {STEPS} steps of {size} are correct; "
        f"kernel {times[0]:.1f} us a step, send and recv {times[1]:.1f} us"
    )


if __name__ == "__main__":
    run(heat, 2, "host")
