"""Proves that every name of pynccl in the tables of docs/coming-from exists, with its keywords."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynccl
from pynccl import nccl, raw

_FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
_OURS = {
    "nccl": nccl,
    "comm": nccl.Communicator,
    "dist": pynccl,
    "stream": nccl.Stream,
    "window": nccl.Window,
    "raw": raw,
}
_PAGES = sorted(path.stem for path in _FOLDER.glob("*.md"))


def _rows(page: str) -> Iterator[list[str]]:
    """The cells of the rows of the table "Call by call"."""
    text = (_FOLDER / f"{page}.md").read_text()
    (section,) = re.findall(r"^## Call by call\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def _calls(cells: list[str]) -> list[str]:
    """The code in some cells."""
    return [call for cell in cells for call in re.findall(r"`([^`]+)`", cell)]


def _name(call: str) -> str:
    return call.partition("(")[0]


@pytest.mark.parametrize("page", _PAGES)
def test_names_of_pynccl(page: str) -> None:
    rows = list(_rows(page))
    assert len(rows) > 10
    wrong = []
    for call in _calls([cell for row in rows for cell in row[1:]]):
        word, *rest = _name(call).split(".")
        found: Any = _OURS.get(word)
        for part in rest:
            found = getattr(found, part, None)
        if found is None:
            wrong.append(call)
            continue
        text = found.__doc__ or ""
        known = dir(found) if isinstance(found, type) else []
        if isinstance(found, type):
            text += str(found.__init__.__doc__)
        wrong += [
            f"{call}: {keyword}"
            for keyword in re.findall(r"(\w+)=(?![\w=])", call)
            if f"{keyword}:" not in text and keyword not in known
        ]
    assert not wrong


def test_calls_are_python() -> None:
    """Except for keywords without a value, as in out=, and the three dots."""
    for page in _PAGES:
        for call in _calls([cell for row in _rows(page) for cell in row]):
            ast.parse(re.sub(r"(\w+)=(?=[,)])", r"\1=0", call))


def _parameters(function: Callable[..., Any]) -> str:
    """The parameters of a function for kernels, as the page writes them."""
    texts = []
    for parameter in inspect.signature(function).parameters.values():
        default = getattr(parameter.default, "value", parameter.default)  # of Triton's constexpr
        given = "" if default is parameter.empty else f"={default}".removesuffix(".0")
        texts.append(parameter.name + given)
    return ", ".join(texts)


def test_signatures_of_functions_for_kernels() -> None:
    """docs/device-api.md lists the parameters of the functions for Triton and Numba."""
    modules = [
        pytest.importorskip(f"pynccl.device.{name}", exc_type=ImportError)
        for name in ("triton", "numba")
    ]
    page = (_FOLDER.parent / "device-api.md").read_text()
    table = page[page.index("| | `pynccl.device.triton`") :].partition("\n\n")[0]
    checked = 0
    for row in table.splitlines()[2:]:
        for module, cell in zip(modules, row.split(" | ")[1:], strict=False):
            for name, parameters in re.findall(r"`(\w+)\(([^)]*)\)`", cell):
                function = getattr(module, name)
                function = getattr(function, "fn", getattr(function, "py_func", function))
                if not inspect.isfunction(function):
                    continue  # an intrinsic of Numba
                assert _parameters(function) == parameters.replace('"', ""), name
                checked += 1
    assert checked > 15
