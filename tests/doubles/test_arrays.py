"""The CUDA device of torch's tensors and the stand-in for CuPy's arrays behave like the originals.

Stream order, memory reuse, events, graphs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from tests.doubles import library

BUSY = 0.3  # seconds


@pytest.fixture(autouse=True)
def _device_0() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    torch.cuda.synchronize()


def test_operations_wait_for_their_stream_and_the_caller_does_not() -> None:
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    library.busy(BUSY)
    started = time.monotonic()
    y = x + 1
    y[1:3].mul_(2)
    x.copy_(y)
    assert time.monotonic() - started < BUSY / 2
    assert x.tolist() == [2.0, 4.0, 4.0, 2.0]
    assert time.monotonic() - started > BUSY / 2


def test_streams_are_not_ordered_without_events() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    library.busy(BUSY)
    x.fill_(1)
    with torch.cuda.stream(side):
        early = x.tolist()
        side.wait_stream(torch.cuda.default_stream())
        late = x.tolist()
    assert (early, late) == ([0.0] * 4, [1.0] * 4)


@pytest.mark.violations
def test_memory_that_another_stream_uses_needs_record_stream(no_violations: None) -> None:
    for record in (True, False):
        side = torch.cuda.Stream()
        x = torch.full((1000,), 7.0, device="cuda")
        torch.cuda.synchronize()
        library.busy(BUSY, side.cuda_stream)
        with torch.cuda.stream(side):
            y = x + 1
        if record:
            x.record_stream(side)
        del x
        torch.empty(1000, device="cuda").fill_(0)
        torch.cuda.synchronize()
        assert (y.tolist() == [8.0] * 1000) == record
        assert (library.violations(clear=True) == []) == record
