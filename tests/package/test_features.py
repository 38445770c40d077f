"""Proves that docs/nccl-features.md lists every function of nccl.h and every field of its
configurations, and that the call and the test that it names for each function exist.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from pathlib import Path

import pytest

import pynccl
from pynccl import _C, nccl, raw

_ROOT = Path(__file__).parents[2]
_FUNCTIONS = raw.load("host").functions()


@functools.cache
def _tables() -> dict[str, list[list[str]]]:
    """The rows of the page's tables as lists of cells, by the heading of the table."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in (_ROOT / "docs" / "nccl-features.md").read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("| ") and not line.startswith("| nccl.h |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            tables.setdefault(heading, []).append(cells)
    return tables


def _rows_of_functions() -> list[list[str]]:
    return [row for table in _tables().values() for row in table if row[0].startswith("nccl")]


def _version(code: int) -> str:
    return _C.version_text(code).removesuffix(".0")


@functools.cache
def _tests_in(file: str) -> set[str]:
    tree = ast.parse((_ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_function_is_listed_in_the_order_of_the_header() -> None:
    expected = [(name, _version(since)) for name, (since, _) in _FUNCTIONS.items()]
    assert [(name, since) for name, since, *_ in _rows_of_functions()] == expected


@pytest.mark.parametrize("function", sorted(_FUNCTIONS))
def test_every_function_has_a_call_and_a_test(function: str) -> None:
    _, _, calls, test, _ = next(row for row in _rows_of_functions() if row[0] == function)
    assert calls
    for call in calls.split(", "):
        found = operator.attrgetter(call.strip("`"))(pynccl if "`raw." in call else nccl)
        assert found.__doc__, f"{call} has no docstring"
    file, name = test.strip("`").split("::")
    assert name.startswith("test_")
    assert name in _tests_in(file)


@pytest.mark.parametrize(
    ("heading", "file"),
    [
        ("Fields of `Config` (ncclConfig_t)", "config_fields.inc"),
        ("Fields of `CollConfig` (ncclCollConfig_t)", "coll_config_fields.inc"),
    ],
)
def test_every_field_is_listed(heading: str, file: str) -> None:
    text = (_ROOT / "csrc" / "abi" / file).read_text()
    fields = re.findall(r"^FIELD\((\d+), [^,]+, (\w+), (\w+), .+\)$", text, re.MULTILINE)
    expected = [[name, _version(int(since)), f"`{attribute}`"] for since, name, attribute in fields]
    assert [row[:3] for row in _tables()[heading]] == expected


def test_reset_debug() -> None:
    assert nccl.reset_debug("host") is None
