"""The section of benchmarks.gpu that measures every collective over sizes.

For each collective and size all results are checked; then the libraries are timed in turns, a
barrier before each sample. A sample is the mean over as many operations as fill its time, and the
maximum over the ranks; bandwidths are in GB/s as nccl-tests defines them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from benchmarks import timing
from benchmarks.libraries import Library
from benchmarks.operations import Buffers, Row, exact_row
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Figure
from benchmarks.world import Settings, World
from pynccl.tools.trace.bandwidth import BUS_FACTORS, bandwidth

__all__ = ["measure"]


def measure(world: World, settings: Settings) -> Iterator[str | list[Figure]]:
    """Measure every collective and size in an existing world, on all ranks.

    Yields:
        Notes, and the figures of the libraries for each row.

    Raises:
        BenchmarkError: a result was wrong.
    """
    if world.refusal:
        yield world.refusal
    # A collection inside a sample would be measured, on every rank that waits for this one.
    gc.disable()
    gc.freeze()
    stop = time.monotonic() + settings.seconds
    rows = [
        exact_row(collective, "float32", world.nranks, nbytes)
        for collective in BUS_FACTORS
        for nbytes in settings.sizes
    ]
    missing: set[tuple[str, str]] = set()  # what a library lacks of the collectives
    for number, row in enumerate(rows := list(dict.fromkeys(rows))):
        if world.maximum([float(time.monotonic() > stop)]) != [0.0]:
            left = ", ".join(f"{one.operation} of {one.nbytes}" for one in rows[number:])
            yield f"not measured, the time was up: {left} bytes"
            return
        gc.collect()
        buffers = Buffers(row, world.rank, in_place=True, device=world.device)
        libraries = []
        for library in world.libraries:
            if (library.name, row.operation) in missing:
                continue
            if reason := _check(world, library, buffers):
                missing.add((library.name, row.operation))
                yield f"{row.operation} by {library.name}: {reason}"
            else:
                libraries.append(library)
        buffers.clear()
        yield _figures(world, settings, libraries, buffers)


def _check(world: World, library: Library, buffers: Buffers) -> str:
    """Run a library once and compare the result; why it cannot, or ''."""
    reason, row = "", buffers.row
    try:
        buffers.fill()
        call = library.call(buffers)
        assert call
        call()
        world.synchronize()
    except Exception as error:  # of another library; it is said, and the others are measured
        if library is world.pynccl:
            raise
        reason = str(error) or type(error).__name__
    if not (reason := world.agree(reason)) and (wrong := buffers.wrong()):
        raise BenchmarkError(f"{row.operation} of {row.nbytes} bytes by {library.name}: {wrong}")
    return reason


def _figures(
    world: World, settings: Settings, libraries: list[Library], buffers: Buffers
) -> list[Figure]:
    row: Row = buffers.row
    calls = {library.name: library.call(buffers) for library in libraries}
    measured = timing.samples(
        {name: world.timer(call) for name, call in calls.items() if call},
        settings.repeats,
        settings.budget,
        world.clock.limit,
    )
    torch = world.torch.name if world.torch else ""
    found = timing.figures(measured, lambda _: torch, collective=row.operation, bytes=row.nbytes)
    for figure in found:
        widths = bandwidth(row.operation, row.nbytes, figure["seconds"], row.nranks)
        figure.update(widths._asdict())
    return found
