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


@on_ranks(1, provider="cuda", fresh=True)
def test_comparisons_of_clocks(rank: Rank) -> None:
    """The operation is over, so nearly all events are those of comparisons.

    A trace also compares the clocks of devices that earlier traces of the process have used.
    """
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
    # The default stream would wait for the program's other streams.
    assert all(call.stream != 0 for call in record.named("cuEventRecord"))
    # One second apart; a comparison may have begun before, and the monitor may record an event.
    assert found <= _EVENTS * (took + 1.5), (found, took)
