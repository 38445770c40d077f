"""Proves that the tables of docs/nccl-features.md are the output of tools/features.py, and that
each function of nccl.h has an object-level call, which exists, and a test, which exists.
"""

from __future__ import annotations

import ast
import functools
import operator
from pathlib import Path

import pytest

import pynccl
from pynccl import nccl, raw
from tools import features

_TESTS = Path(__file__).parents[1]


@functools.cache
def _tests_in(file: str) -> set[str]:
    tree = ast.parse((_TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_document_is_up_to_date() -> None:
    text = features.DOCUMENT.read_text()
    assert text == features.document(text), "python -m tools.features"


def test_every_function_is_listed_with_its_support() -> None:
    listed = {f.name: (f.since, True) for f in features.functions()}
    assert listed == raw.load("host").functions()


@pytest.mark.parametrize("function", sorted(raw.load("host").functions()))
def test_every_function_has_a_call_and_a_test(function: str) -> None:
    calls, test = features.CALLS[function]
    for call in calls.split():
        found = operator.attrgetter(call)(pynccl if call.startswith("raw.") else nccl)
        assert found.__doc__, f"{call} says nothing of itself"
    file, name = test.split("::")
    assert name.startswith("test_")
    assert name in _tests_in(file)


def test_nothing_else_is_listed() -> None:
    assert features.CALLS.keys() | features.DIFFERS.keys() <= raw.load("host").functions().keys()


def test_reset_debug() -> None:
    assert nccl.reset_debug("host") is None
