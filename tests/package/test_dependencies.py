"""Proves that the check of `make lint` finds includes and imports, and errors in them."""

from __future__ import annotations

from tools import dependencies


def test_the_graphs_have_edges() -> None:
    included = dependencies.includes()["csrc/hostnccl/api/nccl_collectives.cpp"]
    assert "csrc/hostnccl/api/nccl_api.h" in included
    imported = dependencies.imports()["pynccl.nccl"]
    assert {"pynccl._C", "pynccl.libraries"} <= imported


def test_cycles_and_wrong_uses_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert dependencies.cycle(graph) == ["b", "c"]
    up = {"csrc/hostnccl/base/flag.h": {"csrc/hostnccl/api/api.h", "csrc/abi/nccl_types.h"}}
    assert dependencies.wrong_uses(up) == ["csrc/hostnccl/base/flag.h uses csrc/hostnccl/api/api.h"]
    across = {"csrc/nccl/library.h": {"csrc/hostnccl/base/error.h"}}
    assert len(dependencies.wrong_uses(across)) == 1
    inverted = {"csrc/comm/stream.cpp": {"csrc/nccl/library.h", "csrc/watch/trace.h"}}
    assert dependencies.wrong_uses(inverted) == ["csrc/comm/stream.cpp uses csrc/watch/trace.h"]
    unknown = {"csrc/new/file.h": set[str]()}
    assert "is in no order" in dependencies.wrong_uses(unknown)[0]


def test_a_header_and_its_sources_are_one_unit() -> None:
    graph = {
        "csrc/a/one.h": set[str](),
        "csrc/a/one.cpp": {"csrc/a/one.h", "csrc/a/two.h"},
        "csrc/a/one_more.cpp": {"csrc/a/one.h", "csrc/a/list.inc"},
        "csrc/a/two.h": {"csrc/a/one.h"},
        "csrc/a/alone_here.cpp": {"csrc/a/two.h"},
    }
    merged = dependencies.units(graph)
    assert merged == {
        "csrc/a/one": {"csrc/a/two", "csrc/a/list.inc"},
        "csrc/a/two": {"csrc/a/one"},
        "csrc/a/alone_here": {"csrc/a/two"},
    }
    assert dependencies.cycle(merged) == ["csrc/a/one", "csrc/a/two"]


def test_imports_for_type_checkers_count_except_those_that_declare_lazy_attributes() -> None:
    graph = dependencies.imports()
    assert "pynccl.flight.dump" in graph["pynccl._internal.inquiry"]
    assert "pynccl.mirror.api.barriers" not in graph["pynccl"]


def test_there_is_no_cycle() -> None:
    assert not dependencies.cycle(dependencies.units(dependencies.includes()))
    assert not dependencies.cycle(dependencies.imports())


def test_starred_literals_are_found() -> None:
    code = "a = (*x, 1)\nb = [1, *(2, 3)]\nprint(*[1], *x)\nfor i in (*(a, b), 2): pass\n"
    assert dependencies.starred_literals(code) == [2, 3, 4]
    assert dependencies.starred_literals("def f(*args): return g(*args, *x(1, 2))\n") == []
