"""What one rank of benchmarks.gpu does: one section after another, in one world."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable

import torch

from benchmarks import gpu_calls, gpu_graphs, gpu_kernels, gpu_overlap, runner
from benchmarks.results import Agenda, Done, Row, Settings, Start
from benchmarks.world import World
from pynccl.testing import Rank

__all__ = ["run"]

# (quick, full)
_CALLS = (20, None)
_REPLAYS = (2, 10)
_REPLAYS_SHARED = 1
_LAUNCHES = (10, 100)
_LAUNCHES_SHARED = 5
_LAB_SIZES: tuple[tuple[int, ...], ...] = ((), (1 << 16,))
_WORK_ON_CPUS = (gpu_overlap.Work(1 << 18, 128), gpu_overlap.Work(16 << 20, 512))
_WORK_ON_GPUS = (gpu_overlap.Work(1 << 20, 512), gpu_overlap.Work(256 << 20, 4096))
_WORK_ON_A_SHARED_GPU = (gpu_overlap.Work(1 << 20, 512), gpu_overlap.Work(16 << 20, 4096))


def run(rank: Rank, settings: Settings, agenda: Agenda) -> None:
    """Measure what is on the agenda; rank 0 reports the figures as they are found."""
    torch.manual_seed(rank.rank)
    world = World(rank, settings)
    report = rank.report if rank.rank == 0 else lambda value: None
    gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
    report(Start(gpus, world.engine, world.absent))
    full, repeats, without = int(not agenda.quick), settings.repeats, agenda.without
    replays = _REPLAYS_SHARED if world.shares else _REPLAYS[full]
    launches = _LAUNCHES_SHARED if world.shares else _LAUNCHES[full]

    work = _work(world)[full]

    sections: dict[str, Callable[[], Iterable[object]]] = {
        "calls": lambda: gpu_calls.run(world, repeats, _CALLS[full]),
        "kernels": lambda: gpu_kernels.run(world, repeats, launches),
        "overlap": lambda: gpu_overlap.run(world, repeats, work),
        "lab": lambda: gpu_overlap.sweep(
            world, repeats, (*_LAB_SIZES[full], work.nbytes), work.side
        ),
        "collectives": lambda: runner.measure(world, settings),
        "sequences": lambda: gpu_graphs.run(world, repeats, replays, without),
    }
    for name in agenda.sections:
        started = time.monotonic()
        for found in sections[name]():
            for one in found.figures() if isinstance(found, Row) else [found]:
                report(one)
        gc.collect()  # graphs go before the communicators that they use
        report(Done(time.monotonic() - started))
    world.close()


def _work(world: World) -> tuple[gpu_overlap.Work, gpu_overlap.Work]:
    if world.device.type == "cpu":
        return _WORK_ON_CPUS
    return _WORK_ON_A_SHARED_GPU if world.shares else _WORK_ON_GPUS
