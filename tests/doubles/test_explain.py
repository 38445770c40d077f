"""nccl.explain() with the double, which loads the tuner plugin as NCCL does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.doubles import library
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_ON = {"PYNCCL_EXPLAIN": "1"}
_SIZES = [4**exponent for exponent in range(5, 16)]


def _explain(rank: Rank, *operations: str) -> list[nccl.Explanation]:
    sizes = [nbytes * rank.nranks for nbytes in _SIZES]
    return [rank.comm.explain(one, nbytes) for one in operations for nbytes in sizes]


@pytest.mark.parametrize("version", ["2.24", "2.28", "2.30", "2.32"])
def test_choice_is_the_least_of_the_costs(launch: Launcher, version: str) -> None:
    operations = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
    env = {**_ON, **library.of_version(version)}
    first, second = launch(2, _explain, *operations, provider="cuda", env=env, fresh=True)
    assert first == second
    assert len(first) == len(operations) * len(_SIZES)
    for found in first:
        least = min(found.costs, key=lambda way: found.costs[way])
        assert (found.algorithm, found.protocol) == least
        assert found.version.startswith(f"NCCL {version}")
        assert found.channels is found.chunk is found.rule is None
    assert {(one.algorithm, one.protocol) for one in first} > {("Ring", "LL"), ("Ring", "Simple")}
    trees = {one.operation for one in first if ("Tree", "LL") in one.costs}
    assert trees == {"all_reduce"}


def _explained_or_not(rank: Rank) -> nccl.Explanation | str:
    try:
        return rank.comm.explain("all_reduce", 1 << 20)
    except nccl.MissingFunctionError as error:
        return str(error)


@on_ranks(2, provider="cuda", env={**_ON, "NCCL_DOUBLE_PLUGINS": "0"}, fresh=True)
def test_unknown_version(rank: Rank) -> None:
    """NCCL knows no version of the plugin's interface, and continues without it."""
    from pynccl._internal import plugin

    assert "has not asked pynccl's plugin" in str(_explained_or_not(rank))
    plugin.interfaces = lambda path, _: [7, 8] if "nccl.so.2" in str(path) else [2, 6]  # type: ignore[assignment]
    found = str(_explained_or_not(rank))
    assert "looks for ncclTunerPlugin_v7, ncclTunerPlugin_v8" in found
    assert "pynccl's plugin has versions 2 to 6" in found


def test_without_the_plugin(launch: Launcher) -> None:
    (found, _) = launch(2, _too_late, provider="cuda", fresh=True)
    assert "before the first communicator" in found


def _too_late(rank: Rank) -> str:
    rank.comm  # noqa: B018 - creates it
    nccl.explain()
    return str(_explained_or_not(rank))


def test_old_nccl(launch: Launcher) -> None:
    found = launch(
        2, _explained_or_not, provider="cuda", env={**_ON, **library.of_version("2.18")}, fresh=True
    )[0]
    assert "NCCL 2.18.5 does not pass its costs to a plugin" in str(found)


def _issued(rank: Rank, counts: list[int]) -> tuple[list[tuple[int, ...]], list[nccl.Explanation]]:
    """The choices of the double for operations that ran, and their explanations."""
    with library.record() as record:
        for count in counts:
            buffer = rank.memory.put(np.ones(count, np.float32))
            rank.comm.all_reduce(buffer)
            assert (rank.memory.get(buffer) == rank.nranks).all()
    seen = [call.arguments[1:] for call in record.named("tuner choice")]
    return seen, [rank.comm.explain("all_reduce", 4 * count) for count in counts]


def _rules(tmp_path: Path, *rules: dict[str, Any]) -> dict[str, str]:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"rules": rules}))
    return {"PYNCCL_TUNING": str(file)}


@pytest.mark.parametrize(
    ("version", "channels", "chunk"),  # NCCL reports what it issues from 2.30 on
    [("2.28", [3, None, None], None), ("2.32", [3, 1, 16], 1 << 19)],
)
def test_forced_choices_reach_nccl(
    launch: Launcher, tmp_path: Path, version: str, channels: list[int | None], chunk: int | None
) -> None:
    tree = {"operation": "all_reduce", "algorithm": "tree", "protocol": "ll128"}
    nvls = {"operation": "all_reduce", "algorithm": "NVLS", "protocol": "Simple"}
    env = _rules(
        tmp_path,
        {**tree, "max_bytes": 4096, "channels": 3},
        {**nvls, "min_bytes": 1 << 20},  # which the double has only for more than 2 ranks
    )
    env |= library.of_version(version)
    counts = [1024, 1025, 1 << 18]
    seen, explained = launch(2, _issued, counts, provider="cuda", env=env, fresh=True)[0]
    assert seen[0] == (4, 4096, 0, 1, 3)
    assert [one[2:4] for one in seen[1:]] == [(1, 0), (1, 2)]
    assert [one.rule for one in explained] == [1, None, 0]
    assert (explained[0].algorithm, explained[0].protocol) == ("Tree", "LL128")
    assert [one.channels for one in explained] == channels
    assert explained[0].chunk == chunk
    assert "forced by rule 1" in str(explained[0])
    assert "NCCL cannot use what the tuning file asks for" in str(explained[2])


@on_ranks(1, provider="cuda", env=_ON, fresh=True)
def test_ranks_as_threads(rank: Rank) -> None:
    """Ranks as threads, then a second pair of communicators: each has its own explanations."""
    import threading

    comms = nccl.Communicator.init_all(2, provider="cuda")
    found: dict[int, list[nccl.Explanation]] = {}

    def explain(index: int) -> None:
        found[index] = [comms[index].explain("all_reduce", nbytes) for nbytes in _SIZES]

    threads = [threading.Thread(target=explain, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert [one.nbytes for one in found[0]] == _SIZES
    for comm in comms:
        comm.close()
    # NCCL has unloaded the plugin, and loads it again.
    comms = nccl.Communicator.init_all(2, provider="cuda")
    assert comms[0].explain("all_reduce", 64).algorithm == "Ring"
    for comm in comms:
        comm.abort()
