"""The CUDA device of torch's tensors and the stand-in for CuPy's arrays behave like the originals.

Stream order, memory reuse, events, graphs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.doubles import library
from tests.support.blocking import when_blocked


@pytest.fixture(autouse=True)
def _device_0() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    torch.cuda.synchronize()


def test_operations_wait_for_their_stream_and_the_caller_does_not() -> None:
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    with library.held() as release:
        y = x + 1
        y[1:3].mul_(2)
        x.copy_(y)
        assert not torch.cuda.default_stream().query()
        thread = when_blocked(release)
        assert x.tolist() == [2.0, 4.0, 4.0, 2.0]
    thread.join()


def test_streams_are_not_ordered_without_events() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side), library.held() as release:
        with torch.cuda.stream(torch.cuda.default_stream()):
            x.fill_(1)
        early = x.tolist()
        side.wait_stream(torch.cuda.default_stream())
        release()
        late = x.tolist()
    assert (early, late) == ([0.0] * 4, [1.0] * 4)


@pytest.mark.violations
def test_memory_that_another_stream_uses_needs_record_stream(no_violations: None) -> None:
    for record in (True, False):
        side = torch.cuda.Stream()
        x = torch.full((1000,), 7.0, device="cuda")
        torch.cuda.synchronize()
        with library.held(side.cuda_stream):
            with torch.cuda.stream(side):
                y = x + 1
            if record:
                x.record_stream(side)
            del x
            torch.empty(1000, device="cuda").fill_(0)
            torch.cuda.default_stream().synchronize()
        torch.cuda.synchronize()
        assert (y.tolist() == [8.0] * 1000) == record
        assert (library.violations(clear=True) == []) == record
