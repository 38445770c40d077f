"""Proves that a rank that dies or is stopped, in any phase of any operation, causes an error on the
ranks that wait for it: for a death long before their time limit, for a stopped rank at the limit.
The text names the rank and the operation, the others continue without it, and nothing leaks.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from pynccl import libraries
from tests.reliability.cells import ABSENCE, PATIENCE, Cell, live, live_and_leave, table
from tests.reliability.endings import Ending
from tests.reliability.workers import Lane, WorldError, lanes
from tests.support import gpu, shared_memory
from tests.support.launcher import too_old
from tests.support.tier import FULL

_SEED = int(os.environ.get("PYNCCL_SEED", "0"))
_LANES = 4  # worlds at a time: most of their time they wait
_SOON = 20.0  # seconds, on a busy machine: after a death or a time limit
_STUCK = 30.0  # for a rank that does not end at all
assert ABSENCE + _SOON < _STUCK < PATIENCE

_CELLS = table("host", _SEED, 315 if FULL else 45)
_CUDA_CELLS = table("cuda", _SEED + 1, 45 if FULL else 15)


def _check(cell: Cell, rank: int, ending: Ending, signalled: float) -> bool:
    """Check the time and the operation; return whether the text names the victim."""
    waited = ending.raised - max(signalled, ending.began)
    limit = _SOON if cell.notices_death else cell.limit + _SOON
    said = f"rank {rank} in {ending.calling}: {ending.kind}: {ending.text}"
    assert waited < limit, f"{waited:.2f} s after {cell.signal}, {said}"
    # On a stream an operation fails that was called before.
    names = "|".join(
        filter(None, (ending.calling, cell.operation, cell.operation and "all_reduce"))
    )
    assert re.search(names.replace("_", ""), ending.text.replace("_", ""), re.IGNORECASE), said
    return bool(re.search(rf"ranks? .*\b{cell.victim}\b", ending.text))


def _run(lane: Lane, cell: Cell) -> None:
    everyone = range(cell.nranks)
    survivors = [rank for rank in everyone if rank != cell.victim]
    function = live_and_leave if cell.leaves else live
    with lane.world(cell.nranks, function, cell, provider=cell.provider) as world:
        world.gather(everyone, "ready", _STUCK)
        signalled = world.signal(cell.victim, getattr(signal, cell.signal))
        world.say(survivors, "go")
        endings = world.join(survivors, _STUCK)
    named = [
        _check(cell, rank, ending, signalled)
        for rank, ending in zip(survivors, endings, strict=True)
        if ending is not None
    ]
    enough = all if cell.notices_death else any
    assert enough(named) or not cell.names_rank, [ending and ending.text for ending in endings]


Results = dict[str, Future[None]]


def _can_recover(cell: Cell) -> bool:
    """Whether NCCL has the function by which the survivors continue."""
    if cell.provider == "host" or cell.phase == "init" or gpu.missing():
        return True
    return libraries.load("cuda").functions()["ncclCommShrink"][1]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """The selected cells, several at a time."""
    before = shared_memory.entries()
    cells: dict[str, Cell] = {
        item.nodeid: item.callspec.params["cell"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    with lanes(_LANES) as submit:
        yield {name: submit(_run, cell) for name, cell in cells.items() if _can_recover(cell)}
    assert not shared_memory.left_behind(before)


def _parameters() -> Iterator[object]:
    for cell in _CELLS + _CUDA_CELLS:
        marks = [pytest.mark.gpu] if cell.provider == "cuda" else []
        yield pytest.param(cell, id=str(cell), marks=marks)


@pytest.mark.parametrize("cell", list(_parameters()))
def test_cell(request: pytest.FixtureRequest, results: Results, cell: Cell) -> None:
    if request.node.nodeid not in results:
        gpu.require("cuda", "ncclCommShrink")
    try:
        results[request.node.nodeid].result()
    except WorldError as error:
        if cell.provider == "cuda" and (reason := too_old(str(error))):
            pytest.skip(reason)
        raise
