"""The sweep of the overlap lab: a product beside an all_reduce, by size and number of CTAs."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_figures import LabRow
from benchmarks.gpu_overlap import ctas_to_try
from benchmarks.world import World
from pynccl.tools import lab

__all__ = ["run"]


def run(world: World, repeats: int, sizes: tuple[int, ...], side: int) -> Iterator[LabRow]:
    """Measure every size with NCCL's choice of CTAs and with given ones; nothing with one rank.

    Args:
        world: the ranks.
        repeats: rounds of a row, 3 at least.
        sizes: of the all_reduce, in bytes.
        side: of the matrices.
    """
    if world.nranks == 1:  # an all_reduce of one rank does nothing
        return
    comm = world.communicator()
    ctas = ["default", *map(str, ctas_to_try())] if world.provider == "cuda" else ["default"]
    choices = {"ctas": ctas, "load": [f"gemm:{side}"], "nbytes": sizes}
    for row in lab.sweep_overlaps(
        comm, lab.combinations(choices), library="torch", repeats=max(3, repeats), limit=10.0
    ):
        yield LabRow(
            world.nranks,
            row.setting["ctas"],
            row.setting["collective"],
            row.setting["nbytes"],
            row.compute.median,
            row.communication.median,
            row.both.median,
            row.hidden,
            row.compute_slowdown,
            row.communication_slowdown,
            verdict=str(row.verdict),
        )
    comm.close()
