"""What one rank does: for each collective and size check the libraries, then time them in turns.

All ranks make the same decisions: the values that decide are agreed on first.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator

import torch

from benchmarks.clock import Elapsed
from benchmarks.machine import inspect
from benchmarks.operations import Buffers, check, exact_size
from benchmarks.peers import Call, Library
from benchmarks.ranks import BenchmarkError
from benchmarks.results import Note, Plan, Row, Settings, Timing
from benchmarks.world import World
from pynccl.testing import Rank
from pynccl.tools.trace.bandwidth import bandwidth

__all__ = ["measure", "run"]


def run(rank: Rank, settings: Settings) -> None:
    """Measure everything; rank 0 reports the plan, the notes and the rows."""
    world = World(rank, settings)
    if world.rank == 0:
        torch_name = world.torch.name if world.torch else "torch"
        rank.report(Plan((world.pynccl.name, torch_name), inspect(world.provider)))
    for found in measure(world, settings):
        if world.rank == 0:
            rank.report(found)
    world.close()


def measure(world: World, settings: Settings) -> Iterator[Note | Row]:
    """Measure every collective and size in an existing world: the notes and the rows."""
    return _Runner(world, settings).run()


class _Runner:
    def __init__(self, world: World, settings: Settings) -> None:
        self._world = world
        self._settings = settings
        self._notes: list[Note] = []  # that are not reported yet
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._missing: set[tuple[str, str]] = set()  # what a library lacks of the collectives

    def run(self) -> Iterator[Note | Row]:
        cases = self._cases()
        if self._world.refusal:
            yield Note(self._world.refusal)
        # A collection inside a sample would be measured, on every rank that waits for this one.
        gc.disable()
        gc.freeze()
        stop = time.monotonic() + self._settings.seconds
        for number, (collective, nbytes) in enumerate(cases):
            if self._world.maximum([float(time.monotonic() > stop)]) != [0.0]:
                left = ", ".join(f"{name} of {size}" for name, size in cases[number:])
                yield Note(f"not measured, the time was up: {left} bytes")
                return
            gc.collect()
            row = self._row(collective, nbytes)
            while self._notes:
                yield self._notes.pop(0)
            yield row

    def _cases(self) -> list[tuple[str, int]]:
        """Collectives and sizes, each once."""
        cases: dict[tuple[str, int], None] = {}
        for collective in self._settings.collectives:
            for size in self._settings.sizes:
                nbytes = exact_size(collective, size, self._settings.nranks, self._dtype.itemsize)
                cases[collective, nbytes] = None
        return list(cases)

    def _row(self, collective: str, nbytes: int) -> Row:
        world, settings = self._world, self._settings
        buffers = Buffers(
            collective,
            nbytes,
            world.rank,
            settings.nranks,
            dtype=self._dtype,
            device=world.device,
        )
        libraries: list[Library] = [world.pynccl]
        self._check(world.pynccl, buffers)
        compared = [*([world.torch] if world.torch else []), *world.others]
        libraries += [library for library in compared if self._check_other(library, buffers)]
        buffers.clear()
        calls = [library.call(buffers) for library in libraries]
        iterations = [self._calibrate(call) for call in calls]
        samples: list[list[Elapsed]] = [[] for _ in libraries]
        for _ in range(settings.repeats):
            for i, call in enumerate(calls):
                world.barrier()
                samples[i].append(world.clock.measure(call, iterations[i]))
        timings = [
            self._timing(library.name, buffers, samples[i], iterations[i])
            for i, library in enumerate(libraries)
        ]
        ours, *rest = timings
        theirs = rest.pop(0) if world.torch in libraries else None
        return Row(collective, nbytes, ours, theirs, tuple(rest))

    def _check(self, library: Library, buffers: Buffers) -> None:
        buffers.fill()
        library.call(buffers)()
        self._world.synchronize()
        check(buffers, library.name)

    def _check_other(self, library: Library, buffers: Buffers) -> bool:
        """Check another library than pynccl, which may not have the collective."""
        reason = ""
        if (library.name, buffers.collective) in self._missing:
            return False
        try:
            self._check(library, buffers)
        except BenchmarkError:
            raise
        except Exception as error:  # of any library; it is said, and the others are measured
            reason = str(error) or type(error).__name__
        reason = self._world.agree(reason)
        if not reason:
            return True
        self._missing.add((library.name, buffers.collective))
        self._notes.append(Note(f"{buffers.collective} by {library.name}: {reason}"))
        return False

    def _calibrate(self, call: Call) -> int:
        """Warm the call up and find how many fill a sample."""
        world, enough = self._world, self._settings.budget / 4
        iterations = 1
        while True:
            world.barrier()
            elapsed = world.clock.measure(call, iterations).seconds * iterations
            [seconds] = world.maximum([elapsed])
            if seconds >= enough or iterations == world.clock.limit:
                break
            growth = min(10, max(2, int(enough / seconds)))
            iterations = min(world.clock.limit, iterations * growth)
        wanted = round(iterations * self._settings.budget / seconds)
        return min(world.clock.limit, max(1, wanted))

    def _timing(
        self, library: str, buffers: Buffers, samples: list[Elapsed], iterations: int
    ) -> Timing:
        slowest = self._world.maximum([sample.seconds for sample in samples])
        hosts = self._world.maximum([sample.host or 0.0 for sample in samples])
        seconds = statistics.median(slowest)
        algbw, busbw = bandwidth(buffers.collective, buffers.nbytes, seconds, buffers.nranks)
        return Timing(
            library=library,
            seconds=seconds,
            samples=tuple(slowest),
            iterations=iterations,
            host_seconds=statistics.median(hosts) if samples[0].host is not None else None,
            algbw=algbw,
            busbw=busbw,
        )
