"""Proves that the check of `make lint` sees includes and imports, and what is wrong in them."""

from __future__ import annotations

from tools import dependencies


def test_the_graphs_have_edges() -> None:
    included = dependencies.includes()["csrc/hostnccl/api/nccl_group.cpp"]
    assert "csrc/hostnccl/api/nccl_api.h" in included
    imported = dependencies.imports()["pynccl.nccl"]
    assert {"pynccl._C", "pynccl.libraries"} <= imported


def test_cycles_and_wrong_uses_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert dependencies.cycles(graph) == [["b", "c"]]
    up = {"csrc/hostnccl/base/flag.h": {"csrc/hostnccl/api/api.h", "csrc/abi/nccl_types.h"}}
    assert dependencies.wrong_uses(up) == ["csrc/hostnccl/base/flag.h uses csrc/hostnccl/api/api.h"]
    across = {"csrc/core/error.h": {"csrc/hostnccl/base/error.h"}}
    assert len(dependencies.wrong_uses(across)) == 1
    unknown = {"csrc/new/file.h": set[str]()}
    assert "is in no order" in dependencies.wrong_uses(unknown)[0]


def test_starred_literals_are_found() -> None:
    code = "a = (*x, 1)\nb = [1, *(2, 3)]\nprint(*[1], *x)\nfor i in (*(a, b), 2): pass\n"
    assert dependencies.starred_literals(code) == [2, 3, 4]
    assert dependencies.starred_literals("def f(*args): return g(*args, *x(1, 2))\n") == []
