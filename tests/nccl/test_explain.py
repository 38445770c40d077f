"""nccl.explain(): the tuner plugin, called like NCCL does through each version of its interface.

tests/doubles/test_explain.py tests it with communicators.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pynccl import nccl
from pynccl._internal import plugin
from pynccl._internal.plugin import Rule
from tests.abi import plugin_checks, run
from tests.abi.report import Report
from tests.support.commands import run_python

VERSIONS = [row for row in plugin_checks.versions() if row.interface == "TUNER"]
_POINTER = ctypes.c_void_p
_NO_CHOICE = -1


class Tuner:
    """A communicator of a tuner, as NCCL sees it.

    Args:
        version: of the interface.
        nranks: the size of the communicator.
    """

    def __init__(self, version: int, nranks: int = 4) -> None:
        library = ctypes.CDLL(str(plugin.path()))
        functions = (_POINTER * 5).in_dll(library, f"ncclTunerPlugin_v{version}")
        assert ctypes.string_at(functions[0]) == b"pynccl"
        self._version = version
        self._ask, self._end = functions[2], functions[3]
        self._chunk = functions[4] if version >= 6 else None
        self.context = _POINTER()
        out = ctypes.byref(self.context)
        sizes = (ctypes.c_size_t(nranks), ctypes.c_size_t(1))
        if version < 5:
            self._call(functions[1], *sizes, None, out)
        else:
            self._call(functions[1], out, ctypes.c_uint64(7), *sizes, None, None, None)

    @staticmethod
    def _call(address: int | None, *arguments: object) -> None:
        assert address is not None
        assert ctypes.CFUNCTYPE(ctypes.c_int)(address)(*arguments) == 0

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
            self._call(self._ask, *head, 0, 0, 1, *tail)
            assert algorithm.value == protocol.value == _NO_CHOICE
        else:
            registered = [1] if self._version >= 4 else []
            self._call(
                self._ask, *head, 1, costs, rows, columns, *registered, ctypes.byref(channels)
            )
        return _least(list(costs), columns), channels.value

    def issue(self, nbytes: int, choice: tuple[int, int], channels: int, chunk: int) -> None:
        size = ctypes.c_size_t(chunk)
        head = [self.context, plugin.FUNCTIONS.index("all_reduce"), ctypes.c_size_t(nbytes)]
        self._call(self._chunk, *head, *choice, channels, ctypes.byref(size))
        assert size.value == chunk

    def end(self) -> None:
        self._call(self._end, self.context)


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


def _table(*, algorithms: int = 7, protocols: int = 3) -> list[list[float]]:
    return [[10.0 * a + p + 1 for p in range(protocols)] for a in range(algorithms)]


@pytest.mark.parametrize("version", [row.number for row in VERSIONS])
def test_calls_of_each_version(version: int) -> None:
    tuner = Tuner(version)
    assert tuner.choose(4096, _table()) == ((0, 0), 0)
    choice, context = _last(), plugin.contexts()[-1]
    assert choice.context == context.number == tuner.context.value
    assert (context.version, context.nranks, context.nodes, context.open) == (version, 4, 1, 1)
    assert context.comm_id == (7 if version >= 5 else 0)
    assert (choice.nbytes, plugin.FUNCTIONS[choice.function]) == (4096, "all_reduce")
    assert choice.registered == (1 if version >= 4 else -1)
    if version >= 3:
        assert (choice.algorithm, choice.protocol) == (0, 0)
        assert [list(row)[:3] for row in choice.costs[:7]] == _table()
    else:  # NCCL 2.21 passes no costs
        assert (choice.algorithms, choice.algorithm, choice.protocol) == (0, -1, -1)
    tuner.end()
    assert plugin.contexts()[-1].open == 0


def test_issued_choices_have_channels() -> None:
    tuner = Tuner(6)
    choice, _ = tuner.choose(1 << 20, _table())
    assert _last().channels == _last().chunk == 0
    tuner.issue(1 << 20, choice, 12, 1 << 19)
    assert (_last().channels, _last().chunk) == (12, 1 << 19)
    tuner.issue(999, choice, 3, 4)  # no such choice is recorded
    assert _last().channels == 12
    tuner.end()


@pytest.mark.parametrize("version", [row.number for row in VERSIONS if row.number >= 3])
def test_choice_is_the_least_of_any_costs(version: int) -> None:
    rng = random.Random(version)
    tuner = Tuner(version)
    kinds = [-1.0, 0.0, -5.0, math.nan, math.inf, 1e-30, 3.4028234e38]
    for _ in range(300):
        shape = rng.choice([(6, 3), (7, 3), (1, 1), (8, 4), (9, 5)])
        table = [
            [
                rng.choice(kinds) if rng.random() < 0.4 else rng.uniform(0, 1e4)
                for _ in range(shape[1])
            ]
            for _ in range(shape[0])
        ]
        chosen, channels = tuner.choose(rng.randrange(1 << 40), table)
        assert channels == 0
        assert chosen == (_last().algorithm, _last().protocol)
    tuner.end()


def test_forced_choices_in_any_costs() -> None:
    """A rule applies exactly if NCCL can use its algorithm and protocol."""
    rng = random.Random(1)
    plugin.set_rules([Rule("all_reduce", "nvls_tree", "simple", channels=5)])
    tuner = Tuner(6)
    for _ in range(300):
        table = [
            [rng.choice([-1.0, 0.0, math.nan, rng.random()]) for _ in range(3)]
            for _ in range(rng.choice([4, 6, 7]))
        ]
        usable = len(table) > 5 and table[5][2] >= 0
        chosen, channels = tuner.choose(64, table)
        assert (_last().rule, channels) == ((1, 5) if usable else (-1, 0))
        if usable:
            assert chosen == (5, 2)
        assert chosen == (_last().algorithm, _last().protocol)
    tuner.end()


def test_the_first_rule_that_matches_applies() -> None:
    plugin.set_rules(
        [
            Rule("all_reduce", "RING", "LL", max_bytes=1024, nranks=8),
            Rule("all_reduce", "ring", "ll128", max_bytes=1024),
            Rule("all_reduce", "pat", "SIMPLE", min_bytes=1024),
        ]
    )
    four, eight = Tuner(4, 4), Tuner(4, 8)
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
    assert plugin.interfaces(plugin.path()) == [row.number for row in VERSIONS]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "is not an object"),
        ("{", "Expecting"),
        ("", "Expecting"),
        ("[" * 100_000, "recursion"),
        (" " * (1 << 20) + '{"rules": []}', "more than 1048576 bytes"),
        ('{"rules": [{"operation": "all_reduce"}]}', "algorithm is missing"),
        (
            '{"rules": [{"operation": "send", "algorithm": "ring", "protocol": "LL"}]}',
            r"rules\[0\]: operation: 'send' is not one of broadcast",
        ),
        (
            '{"rules": [{"operation": "reduce", "algorithm": "x", "protocol": "LL"}]}',
            r"rules\[0\]: algorithm: 'x' is not one of Tree, Ring",
        ),
        (
            '{"rules": [{"operation": "reduce", "algorithm": "ring", "protocol": "LL", '
            '"min_bytes": 9, "max_bytes": 8}]}',
            r"rules\[0\]: max_bytes: 8 is not between 9 and",
        ),
        (
            '{"rules": [{"operation": "reduce", "algorithm": "ring", "protocol": "LL", '
            '"channels": -1}]}',
            r"rules\[0\]: channels: -1 is not between 0 and 64",
        ),
    ],
)
def test_wrong_tuning_files(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(text)
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
