"""Proves that the lab rejects wrong arguments by name before anything is enqueued, that loads have
the requested length, and that its progress bar needs a terminal.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pynccl import nccl
from pynccl._internal.progress import Progress
from pynccl.tools import lab
from pynccl.tools.lab import plots
from pynccl.tools.text import parse_size, size_text
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_TRIES = 20


@pytest.fixture
def comm() -> Iterator[nccl.Communicator]:
    unique_id = nccl.get_unique_id("host")
    with nccl.Communicator(1, unique_id, 0, provider="host") as made:
        yield made


def _never(stream: object) -> None:
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"compute": 3}, TypeError, "compute: expected a function of a stream, got 3"),
        ({"communicate": None}, TypeError, "communicate: expected a function"),
        ({"together": 1}, TypeError, "together: expected a function of two streams"),
        ({"first": "both"}, ValueError, "first: 'both' is neither"),
        ({"form": "lazy"}, ValueError, "form: 'lazy' is neither"),
        ({"repeats": 2}, ValueError, "repeats: 2 is below 3"),
        ({"warmup": -1}, ValueError, "warmup: -1 is below 0"),
        ({"limit": 0}, ValueError, "limit: 0 is not above 0"),
    ],
)
def test_overlap(
    comm: nccl.Communicator, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {"compute": _never, "communicate": _never, **options}
    with pytest.raises(error, match=text):
        lab.overlap(given.pop("compute"), given.pop("communicate"), comm=comm, **given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"collective": "gossip"}, "collective: 'gossip' is not one of all_reduce"),
        ({"buffer": "rented"}, "buffer: 'rented' is not one of plain"),
        ({"chunks": 0}, "chunks: 0 is below 1"),
        ({"nbytes": 3}, "nbytes: 3 is less than a float32"),
    ],
)
def test_communication(comm: nccl.Communicator, options: dict[str, Any], text: str) -> None:
    given = {"collective": "all_reduce", "nbytes": 64, **options}
    with pytest.raises(ValueError, match=text):
        lab.Communication(comm, given.pop("collective"), given.pop("nbytes"), **given)


def test_too_many_ranks(comm: nccl.Communicator) -> None:
    with pytest.raises(ValueError, match="nranks: 2 of 1 ranks"):
        lab.sweep_overlaps(comm, [lab.Setting(nranks=2)])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: lab.Sleep(0), "seconds: 0 is not above 0"),
        (lambda: lab.Spin(-1.0), "seconds: -1.0 is not above 0"),
        (lambda: lab.Setting(ctas="all").config(), "ctas: 'all' is not default, a number or"),
        (lambda: lab.Setting(policy="all").config(), "policy: 'all' is not one of"),
        (lambda: plots.draw_lanes(Path("none.png"), []), "rows: expected at least one row"),
    ],
)
def test_values(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("text", ["gemm:0", "gemm:x", "memory:2", "sleep:soon", "nap", "os:name"])
def test_loads_by_name(comm: nccl.Communicator, text: str) -> None:
    with pytest.raises(ValueError, match=f"load: '{text}'"):
        lab.make_load(text, comm)


def _lengths(rank: Rank, text: str) -> list[float]:
    load = lab.make_load(text, rank.comm)
    stream = rank.stream()
    if text[0] in "gm":
        load(stream)
    lengths = []
    for _ in range(5):
        lab.fit(load, 0.05, rank.comm, stream)
        began = time.perf_counter()
        load(stream)
        stream.synchronize()
        lengths.append(time.perf_counter() - began)
    return lengths


@pytest.mark.parametrize("text", ["gemm:64", "memory:1M", "sleep:1", "spin:1"])
def test_a_load_has_the_requested_duration(launch: Launcher, text: str) -> None:
    # A busy machine may slow the longer run, or the shorter one that it was fitted by.
    for _ in range(_TRIES):
        (lengths,) = launch(1, _lengths, text, env={"OMP_NUM_THREADS": "1"})
        if 0.025 < statistics.median(lengths) < 0.5:
            return
    raise AssertionError(lengths)


def test_sizes() -> None:
    for text, nbytes in (("4", 4), ("64K", 2**16), ("16MB", 2**24), ("1GiB", 2**30)):
        assert parse_size(text) == nbytes
        assert parse_size(size_text(nbytes).replace(" ", "")) == nbytes
    assert size_text(1000) == "1000 B"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress() -> None:
    terminal, pipe = _Terminal(), io.StringIO()
    for file in (terminal, pipe):
        progress = Progress(file)
        progress(1, 4, "all_reduce 64 KiB")
        progress(4, 4, "")
    assert "[######..................] 1/4 all_reduce 64 KiB" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert not pipe.getvalue()
