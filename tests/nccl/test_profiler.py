"""The profiler plugin, called like NCCL does through each version of its interface, and wrongly.

tests/doubles/test_profiler.py tests it with communicators.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from pynccl._internal import plugin
from pynccl.tools.trace import profiled
from pynccl.tools.trace.model import KernelTimes
from tests.abi import plugin_checks
from tests.support import holdings
from tests.support.blocking import in_threads

VERSIONS = [row.number for row in plugin_checks.versions() if row.interface == "PROFILER"]
_POINTER = ctypes.c_void_p
_GROUP, _COLL, _P2P, _PROXY, _STEP, _KERNEL = 1, 2, 4, 8, 16, 64
_SEND_GPU, _SEND, _RECEIVE, _SEND_PEER, _KERNEL_STOP = 8, 9, 10, 20, 22
_EVENT_BYTES = 128  # of the largest descriptor
_LENGTHS = {"channel": 1, "channels": 1, "pid": 4}  # bytes of fields; of others 8


class Profiler:
    """A communicator of a profiler, as NCCL sees it. Its mask is set as NCCL's is.

    Args:
        version: of the interface.
    """

    def __init__(self, version: int) -> None:
        library = ctypes.CDLL(str(plugin.path()))
        functions = (_POINTER * 6).in_dll(library, f"ncclProfiler_v{version}")
        assert ctypes.string_at(functions[0]) == b"pynccl"
        self._version = version
        self._init, self._start, self._stop, self._state, self._end = functions[1:6]
        self._offsets = {
            field: int(offset)
            for field, offset in (
                one.split("=")
                for one in plugin_checks.LAYOUTS[f"ProfilerEventV{min(version, 5)}"][3].split()
            )
        }
        self.mask = _MASK
        self.context = _POINTER()
        self.open()

    def open(self, *, masked: bool = True) -> None:
        mask = ctypes.byref(self.mask) if masked else None
        out = ctypes.byref(self.context)
        rest = (b"name", 1, 2, 0, None)
        if self._version < 4:
            self._call(self._init, out, mask)
        elif self._version == 4:
            self._call(self._init, out, mask, rest[0], ctypes.c_uint64(7), *rest[1:])
        else:
            self._call(self._init, out, ctypes.c_uint64(7), mask, *rest)
        assert self.context.value

    @staticmethod
    def _call(address: int | None, *arguments: object) -> None:
        assert address is not None
        assert ctypes.CFUNCTYPE(ctypes.c_int)(address)(*arguments) == 0

    def start(self, type_: int, parent: int | None = None, **fields: int | bytes) -> int | None:
        """Start an event. Fields are named as in csrc/abi, with __ for a dot."""
        event = ctypes.create_string_buffer(_EVENT_BYTES)
        keep = []
        size = 8 if self._version >= 5 else 1
        event[:size] = type_.to_bytes(size, "little")  # type: ignore[assignment]
        event[8:16] = (parent or 0).to_bytes(8, "little")  # type: ignore[assignment]
        for name, value in fields.items():
            at = self._offsets.get(name.replace("__", "."))
            if at is None:
                continue
            if isinstance(value, bytes):
                keep.append(ctypes.c_char_p(value))
                number, length = ctypes.cast(keep[-1], _POINTER).value or 0, 8
            else:
                number, length = value, _LENGTHS.get(name.rpartition("__")[2], 8)
            event[at : at + length] = number.to_bytes(length, "little")  # type: ignore[assignment]
        handle = _POINTER(0xDEAD)
        self._call(self._start, self.context, ctypes.byref(handle), event)
        return handle.value

    def all_reduce(self, launch: int | None = None, **fields: int | bytes) -> int | None:
        parents = {"coll__group": launch} if self._version >= 5 and launch else {}
        if self._version >= 2:
            fields = {"coll__call__function": b"AllReduce", **fields}
        return self.start(_COLL, launch, **parents, **fields)

    def state(self, handle: int | None, state: int, time_: int | None = None) -> None:
        argument = None if time_ is None else ctypes.byref(ctypes.c_uint64(time_))
        self._call(self._state, _POINTER(handle), state, argument)

    def stop(self, handle: int | None) -> None:
        self._call(self._stop, _POINTER(handle))

    def proxy(self, parent: int | None, pid: int | None = None) -> int | None:
        return self.start(_PROXY, parent, proxy__pid=os.getpid() if pid is None else pid)

    def step(self, parent: int | None) -> int | None:
        return self.start(_STEP, parent)

    def channel(self, parent: int | None, number: int, begin: int) -> int | None:
        return self.start(_KERNEL, parent, kernel__channel=number, kernel__time=begin)

    def close(self) -> None:
        self._call(self._end, self.context)


_MASK = ctypes.c_int(0)  # the plugin keeps its address, like that of NCCL's


@pytest.fixture(autouse=True)
def before() -> Iterator[int]:
    """The number of the last event before the test, which is profiled."""
    yield plugin.start_profile()
    plugin.stop_profile(0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_operation_collects_its_channels_and_waits(before: int, version: int) -> None:
    profiler = Profiler(version)
    assert profiler.mask.value == _GROUP | _COLL | _P2P | _PROXY | _STEP | _KERNEL
    assert plugin.profiler_version() == version
    launch = profiler.start(_GROUP)
    task = profiler.all_reduce(launch, coll__choice__channels=2)
    profiler.stop(task)
    profiler.stop(launch)
    numbers = (3, 5) if version >= 3 else ()  # NCCL has these events since version 3
    channels = [profiler.channel(task, number, 1000 + number) for number in numbers]
    proxy = profiler.proxy(task)
    step = profiler.step(proxy)
    began = time.monotonic_ns()
    for state in (_SEND_GPU, _SEND_PEER, _SEND):
        profiler.state(step, state)
        time.sleep(0.002)
    profiler.stop(step)
    elapsed = time.monotonic_ns() - began
    profiler.stop(proxy)
    for number, channel in zip(numbers, channels, strict=True):
        if version >= 4:
            profiler.state(channel, _KERNEL_STOP, 2000 + 100 * number)
        profiler.stop(channel)
    profiler.close()
    (event,) = plugin.stop_profile(before)
    assert profiler.mask.value == 0
    assert (event.launch != 0, event.channels, event.open) == (True, 2, 0)
    kernel, waits = profiled._kernel(event), profiled._proxy(event)
    if version < 3:
        assert kernel is None
    else:
        assert kernel is not None
        assert kernel[:4] == (3, 5, 2, 2)
    if version >= 4:
        assert kernel == KernelTimes(3, 5, 2, 2, 1497, 1297, 1495)
    assert waits is not None
    assert waits[:3] == (1, 1, 0)
    for wait in (waits.send_gpu, waits.send_peer, waits.send):
        assert 2e6 <= wait <= elapsed
    assert waits[6:] == (0, 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_null_fields_and_unknown_events(before: int, version: int) -> None:
    profiler = Profiler(version)
    for type_ in (0, 32, 128):  # none, the proxy's control, the network's
        assert profiler.start(type_) is None
    if version >= 5:
        for type_ in (1 << 8, 1 << 12, 1 << 63):  # the API's, the copy engines', an unknown one
            assert profiler.start(type_) is None
    assert profiler.start(_COLL) is not None
    assert profiler.start(_P2P) is not None
    profiler.stop(None)
    profiler.state(None, _SEND)
    found = plugin.stop_profile(before)
    assert [(one.function, one.algorithm, one.launch) for one in found] == [
        (b"Broadcast" if version == 1 else b"", b"TREE" if version == 1 else b"", 0),
        (b"Broadcast" if version == 1 else b"", b"", 0),
    ]


def test_wrong_handles_and_orders(before: int) -> None:
    profiler = Profiler(6)
    task = profiler.all_reduce()
    step = profiler.step(profiler.proxy(task))
    assert profiler.proxy(task, os.getpid() + 1) is None  # of a rank with another process's proxy
    for wrong in (0, 1, 7, step, task + 8, task ^ 4, 2**64 - 1):
        assert profiler.proxy(wrong) is None
        assert profiler.channel(wrong, 0, 1) is None
        assert profiler.step(wrong) is None
        if wrong != step:
            profiler.stop(wrong)
            profiler.state(wrong, _SEND)
    assert profiler.channel(task, 64, 1) is None  # NCCL has 64
    for state in (-1, 0, 7, 13, 19, 99):  # of other events, and unknown ones
        profiler.state(step, state)
    profiler.state(step, _KERNEL_STOP, 5)
    profiler.stop(step)
    profiler.stop(step)
    profiler.state(step, _RECEIVE)  # after its end
    channel = profiler.channel(task, 1, 100)
    profiler.state(channel, _KERNEL_STOP)  # no arguments
    profiler.state(channel, _KERNEL_STOP, 50)  # before its begin
    profiler.state(channel, _KERNEL_STOP, 150)
    unended = profiler.channel(task, 2, 100)
    profiler.stop(unended)  # without a time
    (event,) = plugin.stop_profile(before)
    assert (event.proxies, event.steps, event.open, list(event.waits)) == (1, 1, 0, [0] * 6)
    kernel = profiled._kernel(event)
    assert kernel is not None
    assert kernel[:4] == (1, 2, 2, 0)  # without times


def test_missing_stops(before: int) -> None:
    profiler = Profiler(6)
    task = profiler.all_reduce(coll__choice__channels=1)
    profiler.channel(task, 0, 100)
    profiler.state(profiler.step(profiler.proxy(task)), _RECEIVE)
    profiler.close()
    began = time.monotonic()
    (event,) = plugin.stop_profile(before, ("kernel", "proxy"))
    assert time.monotonic() - began > 0.05  # waited for them
    assert (event.open, event.stopped) == (2, 0)
    waits = profiled._proxy(event)
    assert waits.unfinished == 2


def test_events_after_the_trace_and_the_end(before: int) -> None:
    profiler = Profiler(6)
    task = profiler.all_reduce()
    step = profiler.step(profiler.proxy(task))
    profiler.state(step, _SEND)
    profiler.close()
    plugin.stop_profile(before)
    # NCCL stores the mask with captured operations, whose graph it launches later.
    assert profiler.start(_GROUP) is None
    assert profiler.all_reduce() is None
    assert profiler.channel(None, 0, 1) is None
    profiler.stop(step)
    (event,) = plugin.stop_profile(before)
    assert (event.open, event.waits[2] > 0) == (0, True)


def test_a_flood_needs_no_more_memory(before: int) -> None:
    profiler = Profiler(6)
    task = profiler.all_reduce()
    proxy = profiler.proxy(task)
    oldest = profiler.step(proxy)
    for _ in range(10_000):  # touches all pages of the rings
        profiler.step(proxy)
    first = holdings.resident()
    for _ in range(30_000):
        profiler.state(profiler.step(proxy), _SEND)
    assert holdings.resident() - first < 4 << 20
    profiler.state(oldest, _SEND)  # overwritten
    profiler.stop(oldest)
    (event,) = plugin.stop_profile(before)
    assert event.steps == 40_001
    assert event.open == 40_001


def test_an_overwritten_operation(before: int) -> None:
    profiler = Profiler(6)
    task = profiler.all_reduce()
    step = profiler.step(profiler.proxy(task))
    for _ in range(1 << 15):
        profiler.all_reduce()
    profiler.state(step, _SEND)
    profiler.stop(step)
    assert profiler.proxy(task) is None
    found = plugin.stop_profile(before)
    assert len(found) == 1 << 15
    assert all(one.steps == one.open == 0 for one in found)


def test_threads_and_communicators(before: int) -> None:
    profilers = [Profiler(6), Profiler(6)]
    count = 200

    def issue(profiler: Profiler, rank: int) -> None:
        for number in range(count):
            task = profiler.all_reduce(coll__call__sendbuff=rank * 1000 + number)
            step = profiler.step(profiler.proxy(task))
            profiler.state(step, _SEND)
            profiler.stop(step)

    ranks = enumerate([*profilers, *profilers])
    in_threads(*(partial(issue, one, rank) for rank, one in ranks))
    found = plugin.stop_profile(before)
    assert sorted(one.sendbuff for one in found) == [
        rank * 1000 + number for rank in range(4) for number in range(count)
    ]
    assert {(one.proxies, one.steps, one.open) for one in found} == {(1, 1, 0)}


def test_a_fork_in_a_call(before: int) -> None:
    """The plugin's mutex must not be locked in the child."""
    profiler = Profiler(6)
    for _ in range(1 << 15):  # the thread spends most of its time copying them
        profiler.all_reduce()
    stopped = threading.Event()

    def read() -> None:
        out = (plugin.Event * (1 << 15))()
        while not stopped.is_set():
            plugin._library().pynccl_plugin_events(0, out, len(out))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # ends a child that hangs
                plugin._library().pynccl_plugin_profile(0)
                os._exit(0)
            assert os.waitpid(pid, 0) == (pid, 0)
    finally:
        stopped.set()
        thread.join()


def test_the_selection_is_the_mask() -> None:
    profiler = Profiler(6)
    plugin.start_profile(())
    assert profiler.mask.value == _GROUP | _COLL | _P2P
    plugin.start_profile(("kernel",))
    assert profiler.mask.value == _GROUP | _COLL | _P2P | _KERNEL
    plugin.stop_profile(0)
    assert profiler.mask.value == 0
    profiler.open()
    profiler.open(masked=False)
    assert profiler.mask.value == 0
