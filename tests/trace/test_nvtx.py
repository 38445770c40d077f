"""Proves that each operation and group of a process is a range with its size and communicator, for
profilers in general and, with PYNCCL_NVTX, for NVTX tools, and that nothing is loaded otherwise.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pynccl import _C, nccl
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.trace.test_recorder import _every_operation


@contextmanager
def _profiled(open_range: Callable[[str, int, str], Callable[[], object]]) -> Iterator[None]:
    assert _C.set_profiler(open_range) is None
    try:
        yield
    finally:
        assert _C.set_profiler(None) is open_range


class _Ranges:
    """The ranges with their depth, and the open ranges."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str, int, str]] = []
        self.open: list[str] = []

    def __call__(self, operation: str, nbytes: int, group: str) -> Callable[[], None]:
        self.all.append((len(self.open), operation, nbytes, group))
        self.open.append(operation)

        def close() -> None:
            assert self.open.pop() == operation

        return close


@on_ranks(2, by="provider")
def test_each_operation_is_a_range(rank: Rank) -> None:
    ranges = _Ranges()
    with _profiled(ranges):
        _every_operation(rank, rank.comm)
    _every_operation(rank, rank.comm)  # no longer profiled
    assert not ranges.open
    small, large = 4000, 8000
    assert [one[:3] for one in ranges.all] == [
        (0, "all_reduce", small), (0, "broadcast", small), (0, "reduce", small),
        (0, "all_gather", large), (0, "reduce_scatter", large), (0, "all_to_all", large),
        (0, "gather", large), (0, "scatter", large),
        (0, "group", 2 * small), (1, "send", small), (1, "recv", small),
    ]  # fmt: skip
    groups = {one[3] for one in ranges.all if one[1] != "group"}
    assert len(groups) == 1
    assert groups.pop().endswith(f", rank {rank.rank} of {rank.nranks}")


@on_ranks(2, by="provider")
def test_one_sided_operations(rank: Rank) -> None:
    ranges = _Ranges()
    memory = rank.comm.mem_alloc(4096)
    window = rank.comm.register_window(memory)
    peer = (rank.rank + 1) % rank.nranks
    stream, source = rank.stream(), (rank.rank - 1) % rank.nranks
    with _profiled(ranges):
        rank.comm.put_signal(
            memory.ptr, peer, window, 128, count=16, dtype="float32", stream=stream
        )
        rank.comm.signal(peer, stream=stream)
        rank.comm.wait_signal({source: 2}, stream=stream)
    stream.synchronize()
    assert [one[1:3] for one in ranges.all] == [
        ("put_signal", 64),
        ("signal", 0),
        ("wait_signal", 0),
    ]
    window.close()


def _single(name: str | None = None) -> nccl.Communicator:
    return nccl.Communicator(1, nccl.get_unique_id("host"), 0, config=nccl.Config(comm_name=name))


def test_the_name_of_a_communicator() -> None:
    ranges = _Ranges()
    with _single("dp") as comm, _profiled(ranges):
        comm.all_reduce(np.ones(4))
    assert ranges.all == [(0, "all_reduce", 32, "dp, rank 0 of 1")]


def test_a_failing_profiler_does_not_fail_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))

    def fail(*_: object) -> Callable[[], None]:
        raise KeyError("open")

    def close() -> None:
        raise KeyError("close")

    with _single() as comm:
        for function in (fail, lambda *_: close):
            with _profiled(function):
                comm.all_reduce(np.ones(4))
    assert [str(one) for one in reports] == ["'open'", "'close'"]


def test_a_range_ends_after_the_profiler() -> None:
    """The function that ends a range belongs to the range, not to the current profiler."""
    ranges, inside, go = _Ranges(), threading.Event(), threading.Event()

    def slow(operation: str, nbytes: int, group: str) -> Callable[[], None]:
        close = ranges(operation, nbytes, group)
        inside.set()
        go.wait(60)
        return close

    with _single() as comm:
        thread = threading.Thread(target=lambda: comm.all_reduce(np.ones(4)))
        with _profiled(slow):
            thread.start()
            assert inside.wait(60)
        go.set()
        thread.join()
    assert len(ranges.all) == 1
    assert not ranges.open


_PROGRAM = """
import numpy as np
import nvtx

def printed(sign, function):
    def call(*args, **options):
        print(sign, *args, *options.values())
        function(*args, **options)
    return call

nvtx.push_range = printed("+", nvtx.push_range)
nvtx.pop_range = printed("-", nvtx.pop_range)
from pynccl import nccl
config = nccl.Config(comm_name="dp")
x = np.ones(4)
with nccl.Communicator(1, nccl.get_unique_id("host"), 0, config=config) as comm:
    comm.all_reduce(x)
    with nccl.range("step"), nccl.group():
        comm.all_reduce(x)
        comm.all_reduce(np.ones(2))
    with nccl.trace():
        comm.broadcast(x, 0)
    with nccl.trace(annotate=True):
        comm.broadcast(x[:2], 0)
    comm.broadcast(x[:1], 0)
"""


def test_the_calls_of_nvtx() -> None:
    pytest.importorskip("nvtx")
    group = "dp, rank 0 of 1"
    assert run_python("-c", _PROGRAM, PYNCCL_NVTX="1").stdout.splitlines() == [
        f"+ all_reduce pynccl {group} 32", "- pynccl",
        "+ step",
        "+ group pynccl None 48",
        f"+ all_reduce pynccl {group} 32", "- pynccl",
        f"+ all_reduce pynccl {group} 16", "- pynccl",
        "- pynccl",
        "-",
        f"+ broadcast pynccl {group} 32", "- pynccl",
        f"+ broadcast pynccl {group} 16", "- pynccl",
        f"+ broadcast pynccl {group} 8", "- pynccl",
    ]  # fmt: skip


def test_nvtx_is_only_loaded_for_ranges() -> None:
    program = "import sys; from pynccl import _C, nccl; "
    program += "print('nvtx' in sys.modules, _C.set_profiler(None))"
    for value in ("", "0"):
        assert run_python("-c", program, PYNCCL_NVTX=value).stdout == "False None\n"


def test_the_package_nvtx_is_missing() -> None:
    program = "import sys; sys.modules['nvtx'] = None; from pynccl import nccl; nccl.range('a')"
    done = run_python("-c", program, PYNCCL_NVTX="1")
    assert "PYNCCL_NVTX: the package nvtx is not installed" in done.stderr
