"""nccl.explain() and the profile of a trace: the tuner and profiler plugins, called like NCCL does
through each version of their interfaces, and wrongly. tests/doubles tests them with communicators.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pynccl import nccl
from pynccl._internal import plugin
from pynccl._internal.plugin import Rule
from pynccl.tools.trace import profiled
from pynccl.tools.trace.model import KernelTimes
from tests.abi import plugin_checks, run
from tests.abi.report import Report
from tests.support import holdings
from tests.support.blocking import in_threads
from tests.support.commands import run_python

_POINTER = ctypes.c_void_p
_NO_CHOICE = -1


def _versions(interface: str) -> list[int]:
    return [row.number for row in plugin_checks.versions() if row.interface == interface]


_TUNERS, _PROFILERS = _versions("TUNER"), _versions("PROFILER")


def _functions(table: str, count: int) -> list[int | None]:
    """The functions of an interface, after its name."""
    functions = (_POINTER * (1 + count)).in_dll(ctypes.CDLL(str(plugin.path())), table)
    assert ctypes.string_at(functions[0]) == b"pynccl"
    return functions[1:]


def _call(address: int | None, *arguments: object) -> None:
    assert address is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)(*arguments) == 0


class Tuner:
    """A communicator of a tuner, as NCCL sees it.

    Args:
        version: of the interface.
        nranks: the size of the communicator.
    """

    def __init__(self, version: int, nranks: int = 4) -> None:
        count = 4 if version >= 6 else 3
        begin, self._ask, self._end, *chunk = _functions(f"ncclTunerPlugin_v{version}", count)
        self._version, self._chunk = version, chunk
        self.context = _POINTER()
        out = ctypes.byref(self.context)
        sizes = (ctypes.c_size_t(nranks), ctypes.c_size_t(1))
        if version < 5:
            _call(begin, *sizes, None, out)
        else:
            _call(begin, out, ctypes.c_uint64(7), *sizes, None, None, None)

    def choose(
        self, nbytes: int, table: list[list[float]], function: str = "all_reduce"
    ) -> tuple[tuple[int, int], int]:
        """Ask for a choice. Returns NCCL's selection from the table, and the channels."""
        rows, columns = len(table), len(table[0])
        costs = (ctypes.c_float * (rows * columns))(*(one for row in table for one in row))
        channels = ctypes.c_int(0)
        head = [self.context, plugin.FUNCTIONS.index(function), ctypes.c_size_t(nbytes)]
        if self._version == 2:
            algorithm, protocol = ctypes.c_int(_NO_CHOICE), ctypes.c_int(_NO_CHOICE)
            tail = [ctypes.byref(one) for one in (algorithm, protocol, channels)]
            _call(self._ask, *head, 0, 0, 1, *tail)
            assert algorithm.value == protocol.value == _NO_CHOICE
        else:
            registered = [1] if self._version >= 4 else []
            _call(self._ask, *head, 1, costs, rows, columns, *registered, ctypes.byref(channels))
        return _least(list(costs), columns), channels.value

    def issue(self, nbytes: int, choice: tuple[int, int], channels: int, chunk: int) -> None:
        size = ctypes.c_size_t(chunk)
        head = [self.context, plugin.FUNCTIONS.index("all_reduce"), ctypes.c_size_t(nbytes)]
        _call(self._chunk[0], *head, *choice, channels, ctypes.byref(size))
        assert size.value == chunk

    def end(self) -> None:
        _call(self._end, self.context)


def _least(costs: list[float], columns: int) -> tuple[int, int]:
    """NCCL's selection: the first of the least costs."""
    usable = [cost for cost in costs if 0 <= cost < 3.4e38]
    return divmod(costs.index(min(usable)), columns) if usable else (_NO_CHOICE, _NO_CHOICE)


@pytest.fixture(autouse=True)
def _no_rules() -> Iterator[None]:
    plugin.set_rules([])
    yield
    plugin.set_rules([])


def _last() -> plugin.Choice:
    return plugin.choices()[-1]


def _table() -> list[list[float]]:
    return [[10.0 * a + p + 1 for p in range(3)] for a in range(7)]


@pytest.mark.parametrize("version", _TUNERS)
def test_calls_of_each_version(version: int) -> None:
    tuner = Tuner(version)
    assert tuner.choose(4096, _table()) == ((0, 0), 0)
    choice = _last()
    assert choice.context == tuner.context.value
    assert (choice.nbytes, plugin.FUNCTIONS[choice.function]) == (4096, "all_reduce")
    assert choice.registered == (1 if version >= 4 else -1)
    if version >= 3:
        assert (choice.algorithm, choice.protocol) == (0, 0)
        assert [list(row)[:3] for row in choice.costs[:7]] == _table()
    else:  # NCCL 2.21 passes no costs
        assert (choice.algorithms, choice.algorithm, choice.protocol) == (0, -1, -1)
    tuner.end()


def test_issued_choices_have_channels() -> None:
    tuner = Tuner(6)
    choice, _ = tuner.choose(1 << 20, _table())
    assert _last().channels == _last().chunk == 0
    tuner.issue(1 << 20, choice, 12, 1 << 19)
    assert (_last().channels, _last().chunk) == (12, 1 << 19)
    tuner.issue(999, choice, 3, 4)  # no such choice is recorded
    assert _last().channels == 12
    tuner.end()


@pytest.mark.parametrize("version", _TUNERS[1:])
@pytest.mark.parametrize("forced", [False, True])
def test_choices_among_any_costs(version: int, forced: bool) -> None:
    """The least, or that of a rule exactly if NCCL can use its algorithm and protocol."""
    rng = random.Random(version)
    if forced:
        plugin.set_rules([Rule("all_reduce", "nvls_tree", "simple", channels=5)])
    tuner = Tuner(version)
    kinds = [-1.0, 0.0, -5.0, math.nan, math.inf, 1e-30, 3.4028234e38]
    for _ in range(300):
        rows, columns = rng.choice([(4, 3), (6, 3), (7, 3), (1, 1), (8, 4), (9, 5)])
        table = [
            [rng.choice(kinds) if rng.random() < 0.4 else rng.random() for _ in range(columns)]
            for _ in range(rows)
        ]
        applies = forced and rows > 5 and 0 <= table[5][2] < math.inf
        chosen, channels = tuner.choose(rng.randrange(1 << 40), table)
        assert chosen == (_last().algorithm, _last().protocol)
        if forced:
            assert (_last().rule, channels) == ((1, 5) if applies else (-1, 0))
        else:
            assert channels == 0
        if applies:
            assert chosen == (5, 2)
    tuner.end()


@pytest.mark.parametrize("version", _TUNERS[1:])
def test_the_first_rule_that_matches_applies(version: int) -> None:
    plugin.set_rules(
        [
            Rule("all_reduce", "RING", "LL", max_bytes=1024, nranks=8),
            Rule("all_reduce", "ring", "ll128", max_bytes=1024),
            Rule("all_reduce", "pat", "SIMPLE", min_bytes=1024),
        ]
    )
    four, eight = Tuner(version, 4), Tuner(version, 8)
    assert four.choose(1024, _table())[0] == (1, 1)
    assert eight.choose(1024, _table())[0] == (1, 0)
    assert four.choose(1025, _table())[0] == (6, 2)
    assert four.choose(1024, _table(), "broadcast")[0] == (0, 0)
    assert _last().rule == 0
    four.end()
    eight.end()


def test_version_2_forces_nothing() -> None:
    plugin.set_rules([Rule("all_reduce", "ring", "ll", channels=3)])
    tuner = Tuner(2)
    assert tuner.choose(64, _table()) == ((0, 0), 0)  # asserts that there is no output
    tuner.end()


def test_many_records_keep_the_newest() -> None:
    tuner = Tuner(6)
    for nbytes in range(5000):
        tuner.choose(nbytes, [[1.0]])
    found = plugin.choices()
    assert [one.nbytes for one in found] == list(range(5000 - 4096, 5000))
    assert [one.nbytes for one in plugin.choices(found[-2].number)] == [4999]
    tuner.end()


def test_layouts(tmp_path: Path) -> None:
    report = Report()
    source = plugin_checks.layout_source()
    run.check_compiled(report, "layouts", source, tmp_path / "layouts.cpp")
    assert report.failures == 0


def test_the_plugin_exports_the_versions_of_the_table() -> None:
    assert plugin.interfaces(plugin.path()) == _TUNERS


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("[]", "is not an object"),
        ("{", "Expecting"),
        ("", "Expecting"),
        ("[" * 100_000, "recursion"),
        (" " * (1 << 20) + '{"rules": []}', "more than 1048576 bytes"),
        ('{"rules": [{"operation": "all_reduce"}]}', "algorithm is missing"),
        ({"operation": "send"}, "operation: 'send' is not one of broadcast"),
        ({"algorithm": "x"}, "algorithm: 'x' is not one of Tree, Ring"),
        ({"min_bytes": 9, "max_bytes": 8}, "max_bytes: 8 is not between 9 and"),
        ({"channels": -1}, "channels: -1 is not between 0 and 64"),
    ],
)
def test_wrong_tuning_files(tmp_path: Path, given: str | dict[str, object], error: str) -> None:
    file = tmp_path / "tuning.json"
    if isinstance(given, dict):
        rule = {"operation": "reduce", "algorithm": "ring", "protocol": "LL", **given}
        given, error = json.dumps({"rules": [rule]}), rf"rules\[0\]: {error}"
    file.write_text(given)
    with pytest.raises(ValueError, match=f"tuning.json.*{error}"):
        nccl.explain(file)
    assert "NCCL_TUNER_PLUGIN" not in os.environ


def test_tuning_files_that_cannot_be_read(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(OSError, match=tmp_path.name):
            nccl.explain(file)
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        nccl.explain("/dev/zero")
    if os.getuid() != 0:  # root reads any file
        file = tmp_path / "secret.json"
        file.write_text('{"rules": []}')
        file.chmod(0)
        with pytest.raises(PermissionError, match="secret"):
            nccl.explain(file)
    assert "NCCL_TUNER_PLUGIN" not in os.environ


def test_too_many_rules() -> None:
    with pytest.raises(ValueError, match="300 are too many; the plugin takes 256"):
        plugin.set_rules([Rule("reduce", "ring", "ll")] * 300)


def test_environment(tmp_path: Path) -> None:
    show = "import os, pynccl.nccl; print(os.environ.get('NCCL_TUNER_PLUGIN'))"
    assert run_python("-c", show).stdout == "None\n"
    assert run_python("-c", show, PYNCCL_EXPLAIN="0").stdout == "None\n"
    own = f"{plugin.path()}\n"
    assert run_python("-c", show, PYNCCL_EXPLAIN="1").stdout == own
    assert run_python("-c", show, PYNCCL_EXPLAIN="1", NCCL_TUNER_PLUGIN=own.strip()).stdout == own
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"rules": []}))
    assert run_python("-c", show, PYNCCL_TUNING=str(file)).stdout == own
    refused = run_python("-c", show, PYNCCL_EXPLAIN="yes").stderr
    assert "PYNCCL_EXPLAIN: 'yes' is neither 0 nor 1" in refused
    other = run_python("-c", show, PYNCCL_EXPLAIN="1", NCCL_TUNER_PLUGIN="libother.so").stderr
    assert "NCCL_TUNER_PLUGIN is 'libother.so'" in other


def test_wrong_arguments(comm: nccl.Communicator, pair: list[nccl.Communicator]) -> None:
    for operation, nbytes, error in (
        ("send", 1, "operation: 'send' is not one of broadcast"),
        ("reduce", 0, "nbytes: 0 is not a positive multiple of 1"),
        ("reduce", True, "nbytes: True is not"),
        ("all_gather", 3, "nbytes: 3 is not a positive multiple of 2"),
    ):
        with pytest.raises(ValueError, match=error):
            pair[0].explain(operation, nbytes)
    with pytest.raises(ValueError, match="one rank"):
        comm.explain("all_reduce", 1024)


# The profiler

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
        self._version = version
        table = _functions(f"ncclProfiler_v{version}", 5)
        self._init, self._start, self._stop, self._state, self._end = table
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
            _call(self._init, out, mask)
        elif self._version == 4:
            _call(self._init, out, mask, rest[0], ctypes.c_uint64(7), *rest[1:])
        else:
            _call(self._init, out, ctypes.c_uint64(7), mask, *rest)
        assert self.context.value

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
        _call(self._start, self.context, ctypes.byref(handle), event)
        return handle.value

    def all_reduce(self, launch: int | None = None, **fields: int | bytes) -> int | None:
        parents = {"coll__group": launch} if self._version >= 5 and launch else {}
        if self._version >= 2:
            fields = {"coll__call__function": b"AllReduce", **fields}
        return self.start(_COLL, launch, **parents, **fields)

    def state(self, handle: int | None, state: int, time_: int | None = None) -> None:
        argument = None if time_ is None else ctypes.byref(ctypes.c_uint64(time_))
        _call(self._state, _POINTER(handle), state, argument)

    def stop(self, handle: int | None) -> None:
        _call(self._stop, _POINTER(handle))

    def proxy(self, parent: int | None, pid: int | None = None) -> int | None:
        return self.start(_PROXY, parent, proxy__pid=os.getpid() if pid is None else pid)

    def step(self, parent: int | None) -> int | None:
        return self.start(_STEP, parent)

    def channel(self, parent: int | None, number: int, begin: int) -> int | None:
        return self.start(_KERNEL, parent, kernel__channel=number, kernel__time=begin)

    def close(self) -> None:
        _call(self._end, self.context)


_MASK = ctypes.c_int(0)  # the plugin keeps its address, like that of NCCL's


@pytest.fixture
def before() -> Iterator[int]:
    """The number of the last event before the test, which is profiled."""
    yield plugin.start_profile()
    plugin.stop_profile(0)


@pytest.mark.parametrize("version", _PROFILERS)
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


@pytest.mark.parametrize("version", _PROFILERS)
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
