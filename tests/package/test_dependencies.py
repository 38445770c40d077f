"""Proves that no files, folders or modules use each other in a cycle, and that each folder uses
only folders before it in the order of tools/dependencies.py.
"""

from __future__ import annotations

import pytest

from tools import dependencies

_GRAPHS = {"includes": dependencies.includes(), "imports": dependencies.imports()}


@pytest.mark.parametrize("name", _GRAPHS)
def test_no_cycle(name: str) -> None:
    assert dependencies.cycles(_GRAPHS[name]) == []
    assert dependencies.cycles(dependencies.folders(_GRAPHS[name])) == []


@pytest.mark.parametrize("name", _GRAPHS)
def test_only_earlier_folders_are_used(name: str) -> None:
    assert dependencies.wrong_uses(_GRAPHS[name]) == []


def test_the_graphs_have_edges() -> None:
    included = _GRAPHS["includes"]["csrc/hostnccl/api/nccl_group.cpp"]
    assert "csrc/hostnccl/api/nccl_api.h" in included
    assert "pynccl._C" in _GRAPHS["imports"]["pynccl.nccl"]
    assert "pynccl.libraries" in _GRAPHS["imports"]["pynccl.nccl"]


def test_cycles_and_wrong_uses_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert dependencies.cycles(graph) == [["b", "c"]]
    up = {"csrc/hostnccl/base/flag.h": {"csrc/hostnccl/api/api.h", "csrc/abi/nccl_types.h"}}
    assert dependencies.wrong_uses(up) == ["csrc/hostnccl/base/flag.h uses csrc/hostnccl/api/api.h"]
    across = {"csrc/core/error.h": {"csrc/hostnccl/base/error.h"}}
    assert len(dependencies.wrong_uses(across)) == 1
    unknown = {"csrc/new/file.h": set[str]()}
    assert "is in no order" in dependencies.wrong_uses(unknown)[0]
