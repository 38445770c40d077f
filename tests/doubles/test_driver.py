"""The double of libcuda.so.1 follows the driver's rules.

Contexts, devices, streams and their implicit order, events, captures, memory.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import pytest

from tests.doubles import library
from tests.doubles.library import use
from tests.support.blocking import in_threads, when_blocked

pytestmark = pytest.mark.violations

GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # CUstreamCaptureMode


def stream(*, blocking: bool = False) -> int:
    return library.driver().new("cuStreamCreate", 0 if blocking else 1)


def _waits(call: Callable[[], object], release: Callable[[], None]) -> bool:
    """Whether a call returns only once a stream is released."""
    released = []

    def unblock() -> None:
        released.append(True)
        release()

    when_blocked(unblock)
    call()
    return bool(released)


@pytest.fixture
def cuda() -> Iterator[library.Driver]:
    """The driver, with device 0 current."""
    driver = library.driver()
    before = driver.new("cuCtxGetCurrent")
    use(0)
    yield driver
    driver("cuCtxSetCurrent", before)


def test_calls_that_need_a_context_fail_without_one() -> None:
    use(0)
    made, event = stream(), library.driver().new("cuEventCreate", 2)

    def body() -> None:
        driver = library.driver()
        for call in (
            ("cuStreamSynchronize", made),
            ("cuStreamQuery", made),
            ("cuStreamWaitEvent", made, event, 0),
            ("cuEventRecord", event, made),
            ("cuEventQuery", event),
            ("cuEventSynchronize", event),
            ("cuStreamCreate", ctypes.byref(ctypes.c_uint64()), 1),
            ("cuEventCreate", ctypes.byref(ctypes.c_uint64()), 0),
            ("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8),
            ("cuCtxGetDevice", ctypes.byref(ctypes.c_int())),
            ("cuStreamSynchronize", 0),
        ):
            with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_CONTEXT"):
                driver(*call)
        use(1)  # any context will do for an explicit stream
        driver("cuStreamSynchronize", made)
        driver("cuEventQuery", event)

    in_threads(body)


def test_events_and_streams_belong_to_a_device(cuda: library.Driver) -> None:
    first, event = stream(), cuda.new("cuEventCreate", 2)
    use(1)
    second = stream()
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda("cuEventRecord", event, second)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda("cuEventRecord", event, 0)  # the default stream of device 1
    cuda("cuEventRecord", event, first)  # regardless of the current context
    cuda("cuStreamWaitEvent", second, event, 0)  # a stream waits for any device's events
    cuda("cuStreamSynchronize", second)
    for handle in (first, second):
        cuda("cuStreamDestroy_v2", handle)
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_HANDLE"):
            cuda("cuStreamQuery", handle)
    cuda("cuEventDestroy_v2", event)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda("cuEventQuery", event)


@pytest.mark.parametrize("default", [0, 1])
def test_the_legacy_stream_waits_for_blocking_streams(cuda: library.Driver, default: int) -> None:
    blocking, free = stream(blocking=True), stream()
    with library.held(blocking) as release:
        cuda("cuStreamSynchronize", free)
        assert _waits(lambda: cuda("cuStreamSynchronize", default), release)
    with library.held(free):
        cuda("cuStreamSynchronize", default)
        assert not cuda.query("cuStreamQuery", free)
    cuda("cuStreamSynchronize", free)


def test_blocking_streams_wait_for_the_legacy_stream(cuda: library.Driver) -> None:
    blocking, free = stream(blocking=True), stream()
    with library.held() as release:
        assert cuda.query("cuStreamQuery", free)
        assert _waits(lambda: cuda("cuStreamSynchronize", blocking), release)


def test_per_thread_streams_are_apart(cuda: library.Driver) -> None:
    def other() -> None:
        use(0)
        library.driver()("cuStreamSynchronize", 2)

    with library.held(2) as release:
        in_threads(other)
        assert not cuda.query("cuStreamQuery", 2)
        # But the legacy stream waits for them.
        assert _waits(lambda: cuda("cuStreamSynchronize", 0), release)


def test_devices_have_their_own_default_streams(cuda: library.Driver) -> None:
    with library.held(0, device=0):
        use(1)
        assert cuda.query("cuStreamQuery", 0)
        use(0)
        assert not cuda.query("cuStreamQuery", 0)
    cuda("cuCtxSynchronize")
    assert cuda.query("cuStreamQuery", 0)


def test_the_legacy_stream_is_not_captured(cuda: library.Driver) -> None:
    with pytest.raises(RuntimeError, match="STREAM_CAPTURE_UNSUPPORTED"):
        cuda("cuStreamBeginCapture_v2", 0, 0)
    blocking = stream(blocking=True)
    cuda("cuStreamBeginCapture_v2", blocking, 2)
    with pytest.raises(RuntimeError, match="STREAM_CAPTURE_IMPLICIT"):
        library.driver()("cuMemsetD8Async", 8, ctypes.c_ubyte(0), 0, 0)
    cuda("cuGraphDestroy", cuda.end_capture(blocking))


@pytest.mark.parametrize(
    ("mode", "elsewhere", "allowed"),
    [
        (GLOBAL, False, False),
        (THREAD_LOCAL, False, False),
        (RELAXED, False, True),
        (GLOBAL, True, False),
        (THREAD_LOCAL, True, True),
    ],
)
def test_destroying_a_graph_invalidates_captures(
    cuda: library.Driver, mode: int, elsewhere: bool, allowed: bool
) -> None:
    captured = stream()

    def destroy() -> None:
        use(0)
        cuda("cuGraphExecDestroy", executable)

    cuda("cuStreamBeginCapture_v2", captured, RELAXED)
    graph = cuda.end_capture(captured)
    executable = cuda.new("cuGraphInstantiateWithFlags", graph, 0)
    cuda("cuGraphDestroy", graph)
    cuda("cuStreamBeginCapture_v2", captured, mode)
    with (
        contextlib.nullcontext()
        if allowed
        else pytest.raises(RuntimeError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
    ):
        in_threads(destroy) if elsewhere else destroy()
    if allowed:
        cuda("cuGraphDestroy", cuda.end_capture(captured))
    else:
        with pytest.raises(RuntimeError, match="CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
            cuda.end_capture(captured)
        destroy()


def test_an_event_of_another_capture_invalidates_a_capture(cuda: library.Driver) -> None:
    first, second, event = stream(), stream(), cuda.new("cuEventCreate", 2)
    cuda("cuStreamBeginCapture_v2", first, RELAXED)
    cuda("cuEventRecord", event, first)
    cuda("cuGraphDestroy", cuda.end_capture(first))
    with pytest.raises(RuntimeError, match="CUDA_ERROR_CAPTURED_EVENT"):
        cuda("cuStreamWaitEvent", second, event, 0)
    cuda("cuStreamBeginCapture_v2", second, RELAXED)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_STREAM_CAPTURE_MERGE"):
        cuda("cuStreamWaitEvent", second, event, 0)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        cuda.end_capture(second)
    cuda("cuStreamBeginCapture_v2", second, RELAXED)
    cuda("cuEventRecord", event, second)
    cuda("cuStreamWaitEvent", second, event, 0)
    cuda("cuGraphDestroy", cuda.end_capture(second))


def test_memory_is_poisoned_when_it_is_freed(cuda: library.Driver) -> None:
    address, seen = cuda.new("cuMemAlloc_v2", 16), []
    device = ctypes.c_int()
    cuda("cuPointerGetAttribute", ctypes.byref(device), 9, address)
    assert device.value == 0
    other = stream()
    cuda("cuMemsetD8Async", address, ctypes.c_ubyte(7), 16, other)
    cuda("cuStreamSynchronize", other)
    seen.append(ctypes.string_at(address, 16))
    # In stream order: valid before, invalid after.
    with library.held(other):
        cuda("cuMemFreeAsync", address, other)
        assert ctypes.string_at(address, 16) == b"\7" * 16
    cuda("cuStreamSynchronize", other)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda("cuMemFreeAsync", address, other)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda("cuPointerGetAttribute", ctypes.byref(device), 9, address)


def test_memory_that_is_used_after_its_free_is_reported(
    cuda: library.Driver, no_violations: None
) -> None:
    address, first, second = cuda.new("cuMemAlloc_v2", 16), stream(), stream()
    with library.held(first):
        cuda("cuMemsetD8Async", address, ctypes.c_ubyte(7), 16, first)
        cuda("cuMemFreeAsync", address, second)  # does not wait for the first stream
        cuda("cuStreamSynchronize", second)
    cuda("cuCtxSynchronize")
    (text, *rest) = library.violations()
    assert "cuMemFreeAsync of 16 bytes" in text or "cuMemFreeAsync of 4096 bytes" in text
    assert any("after it was freed" in line for line in rest)
