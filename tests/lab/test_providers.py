"""Proves that the sweeps run over both providers: separate processes for each algorithm, CTAs,
policies, priorities and kinds of buffers.
"""

from __future__ import annotations

import pytest

from pynccl import nccl
from pynccl.testing import LaunchError
from pynccl.tools import lab
from pynccl.tools.lab.algorithms import compare, winner, write_table
from pynccl.tools.lab.variants import Variant, variants
from tests.support.launcher import Launcher
from tests.support.rank import Rank

pytestmark = pytest.mark.serial  # judged by times

_SIZES = (1 << 12, 1 << 16)


def test_algorithms(provider: str) -> None:
    if nccl.get_version(provider) < (2, 19, 0):
        pytest.skip("a barrier needs ncclMemAlloc, of NCCL 2.19")
    algorithms = ["ring"] if provider == "cuda" else ["staged", "direct", "window"]
    ctas = ["default", "2"] if provider == "cuda" else ["default"]
    compared = variants(provider, "all_reduce", algorithms, ["default"], ctas)
    measured = compare(provider, "all_reduce", _SIZES, compared, [2], repeats=3)
    assert [entry.error for entry in measured if entry.error] == []
    assert {(entry.nbytes, entry.variant) for entry in measured} == {
        (nbytes, variant) for nbytes in _SIZES for variant in compared
    }
    chosen = [entry.chosen for entry in measured if entry.variant == Variant()]
    explains = provider == "host" or nccl.get_version(provider) >= (2, 22, 0)
    assert all(chosen) == explains, chosen
    for nbytes in _SIZES:
        best = winner(measured, 2, nbytes)
        assert best is not None
        assert best.variant != Variant()
        assert best.busbw > 0
    assert len(write_table(measured).splitlines()) == 1 + len(_SIZES)


def _sweep(rank: Rank) -> list[tuple[str, float]]:
    settings = lab.combinations(
        {
            "ctas": ["default", "1:2"],
            "priority": [0, -1],
            "buffer": ["plain", "registered", "window"],
            "load": ["sleep"],
            "nbytes": [1 << 12],
        }
    )
    rows = lab.sweep_overlaps(rank.comm, settings, load_seconds=0.005, repeats=3, evidence=False)
    return [(row.provider, row.compute.median) for row in rows]


def test_a_size_that_is_too_small() -> None:
    with pytest.raises(LaunchError, match="nbytes: 1 is less than a float32 for each rank"):
        compare("host", "all_gather", [1], [Variant()], [2], repeats=1)


def test_settings(launch: Launcher, provider: str) -> None:
    rows = launch(2, _sweep, provider=provider)[0]
    assert len(rows) == 12
    for of_provider, seconds in rows:
        assert of_provider == provider
        assert seconds > 0.0045


def _policies(rank: Rank) -> int:
    settings = [lab.Setting(policy=policy, load="sleep") for policy in ("efficiency", "zero")]
    return len(lab.sweep_overlaps(rank.comm, settings, repeats=3, evidence=False))


def test_policies(launch: Launcher, provider: str) -> None:
    if nccl.get_version(provider) < (2, 28, 0):
        pytest.skip("the policy zero is of NCCL 2.28")
    assert launch(2, _policies, provider=provider) == [2, 2]
