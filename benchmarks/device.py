"""Times the all_reduce kernels over <pynccl/device.h> beside hostnccl's own all_reduce, on CPUs.

    python -m benchmarks.device --ranks 2,4

The section "kernels" of benchmarks.gpu alone: the calls are in loops in C and alternate, so that a
disturbance of the machine meets all of them. A time is the maximum over the ranks, of one call.
"""

from __future__ import annotations

import argparse

from benchmarks import gpu_sections, report
from benchmarks.machine import describe, inspect
from benchmarks.options import positive, tuple_of
from benchmarks.ranks import run_ranks
from benchmarks.world import Settings, World
from pynccl.testing import Rank

__all__ = ["main"]

_SILENCE = 300.0  # seconds without a row


def _rank(rank: Rank, repeats: int, budget: float) -> None:
    world = World(rank, Settings("cpu", "float32", (), (), repeats, budget))
    for found in gpu_sections.kernels(world, repeats, budget):
        if rank.rank == 0:
            rank.report(found)
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=tuple_of(positive), default=(2, 4), help="world sizes (2,4)")
    add("--passes", type=positive, default=11, help="samples of each call (11)")
    add("--budget", type=float, default=0.05, help="seconds of one sample (0.05)")
    options = parser.parse_args()
    print(describe(inspect("host")))
    for nranks in options.ranks:
        print(f"\n{nranks} ranks")
        table = report.Table()
        for found in run_ranks(nranks, _rank, (options.passes, options.budget), _SILENCE):
            if isinstance(found, str):
                print(f"note: {found}")
            else:
                del found["samples"]
                table.add({key: value for key, value in found.items() if value is not None})


if __name__ == "__main__":
    main()
