"""A trace compares the clock of a device with that of the process once per second."""

from __future__ import annotations

import time

import numpy as np

from pynccl import nccl
from tests.doubles import library
from tests.support.blocking import wait_until
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_EVENTS = 5  # per comparison


@on_ranks(1, provider="cuda")
def test_comparisons_of_clocks(rank: Rank) -> None:
    """The operation is over, so nearly all events are those of comparisons."""
    buffer, stream = rank.memory.put(np.ones(4, np.float32)), rank.stream()
    with nccl.trace():
        rank.comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
        began = time.monotonic()
        with library.record() as record:

            def compared() -> int:
                record.read()
                return len(record.named("cuEventRecord"))

            wait_until(lambda: compared() >= 4 * _EVENTS)
            found = compared()
            took = time.monotonic() - began
    # Others record one now and then. Without a pause there would be thousands.
    assert found <= 2 * _EVENTS * (took + 2.5), (found, took)
