"""Proves the lab's settings for each algorithm and version of NCCL."""

from __future__ import annotations

import pytest

from pynccl.tools.lab.algorithms import Measured, tuning
from pynccl.tools.lab.row import Timing
from pynccl.tools.lab.variants import (
    Variant,
    environment,
    variants,
)

_OLD, _LISTS, _NAMED = (2, 21, 5), (2, 30, 7), (2, 31, 2)


def test_all_combinations_with_the_default_first() -> None:
    found = variants("cuda", "all_reduce", ["ring", "tree"], ["ll", "simple"], ["default"])
    assert list(map(str, found)) == ["default", "ring ll", "ring simple", "tree ll", "tree simple"]
    found = variants("cuda", "broadcast", ["ring"], ["default"], ["1", "16"])
    assert list(map(str, found)) == ["default", "ring 1 CTAs", "ring 16 CTAs"]


@pytest.mark.parametrize("collective", ["all_to_all", "gather", "scatter", "send_recv"])
def test_messages_have_no_algorithms(collective: str) -> None:
    with pytest.raises(ValueError, match=f"{collective} has none"):
        variants("cuda", collective, ["ring"], ["default"], ["default"])


def test_unavailable_ctas() -> None:
    with pytest.raises(ValueError, match="ctas: 'many' is neither default nor a number"):
        variants("cuda", "all_reduce", ["default"], ["default"], ["many"])
    with pytest.raises(ValueError, match="protocols, ctas: hostnccl has neither"):
        variants("host", "all_reduce", ["default"], ["default"], ["4"])


def test_environment() -> None:
    variant = Variant("tree", "ll128")
    assert environment(variant, "all_reduce", _OLD) == {"NCCL_ALGO": "tree", "NCCL_PROTO": "ll128"}
    for version in (_LISTS, _NAMED):
        assert environment(variant, "all_reduce", version) == {
            "NCCL_ALGO": "ring;AllReduce:tree",
            "NCCL_PROTO": "AllReduce:ll128",
        }
    assert environment(Variant(), "all_reduce", _NAMED) == {}


def test_tuning_file_has_the_winners() -> None:
    """A rule for each size at which a variant is at least 5% faster than NCCL's choice."""
    ring, tree = Variant("ring", "ll"), Variant("tree", "simple")
    seconds: dict[int, dict[Variant, float]] = {
        1024: {Variant(): 10, ring: 8, tree: 12, Variant("ring"): 1, Variant("ring", "ll", "4"): 1},
        4096: {Variant(): 10, ring: 9, tree: 12},
        16384: {Variant(): 10, ring: 9.8, tree: 9.9},
        65536: {Variant(): 10, ring: 12, tree: 5},
    }
    measured = [
        Measured("all_reduce", 4, nbytes, variant, Timing((float(time),)))
        for nbytes, times in seconds.items()
        for variant, time in times.items()
    ]
    rules = tuning(measured)
    common = {"operation": "all_reduce", "nranks": 4}
    assert rules == [
        {**common, "algorithm": "ring", "protocol": "ll", "min_bytes": 1024, "max_bytes": 8192},
        {
            **common,
            "algorithm": "tree",
            "protocol": "simple",
            "min_bytes": 32769,
            "max_bytes": 65536,
        },
    ]
