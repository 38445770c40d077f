"""Proves that every public name is in the reference, and that its docstring describes each
parameter, its result and its errors.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from pynccl import nccl, raw
from tests.support import docstrings
from tools import nccl_reference

_ROOT = Path(__file__).parents[2]
_PAGES = sorted((_ROOT / "docs" / "reference").glob("*.rst"))
_DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>auto\w+|py:\w+|currentmodule):: (?P<name>.+)\n"
    r"(?P<more>(?: +[A-Za-z_][\w()=*, -]*\n)*)(?P<options>(?: +:.*\n)*)",
    re.MULTILINE,
)


def _documented() -> dict[str, set[str]]:
    """The names on the pages of the reference by module; "Class.member" for single members."""
    found: dict[str, set[str]] = {}
    for page in _PAGES:
        module = ""
        for match in _DIRECTIVE.finditer(page.read_text()):
            kind, name = match["kind"], match["name"].strip()
            if kind in ("automodule", "currentmodule", "py:currentmodule"):
                module = name
                names = found.setdefault(module, set())
                if kind == "automodule" and ":members:" in match["options"]:
                    names |= set(importlib.import_module(module).__all__)
            else:
                lines = [name, *match["more"].splitlines()]
                found[module] |= {line.strip().partition("(")[0] for line in lines if line.strip()}
    return found


_DOCUMENTED = _documented()


def _import(module: str) -> ModuleType:
    return pytest.importorskip(module)


@pytest.mark.parametrize("module", sorted(_DOCUMENTED))
def test_every_public_name_is_in_the_reference(module: str) -> None:
    names = set(_import(module).__all__)
    if module == "pynccl":
        names -= {"nccl", "raw", "ops", "memory"}  # modules with pages of their own
    elif module == "pynccl.errors":
        names -= set(nccl.__all__)
    elif module == "pynccl.store":
        names = {"Store"}
    assert names - _DOCUMENTED[module] == set()


def test_every_member_of_communicator_is_in_the_reference() -> None:
    """Its page lists them by subject."""
    members = {name for name in dir(nccl.Communicator) if name[0] != "_"}
    names = _DOCUMENTED["pynccl.nccl"]
    listed = {name.partition(".")[2] for name in names if name.startswith("Communicator.")}
    assert listed == members


def test_modules_that_the_documentation_names_are_in_the_reference() -> None:
    internal = {"pynccl.cli"}
    pages = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    for name in sorted(set(re.findall(r"\bpynccl(?:\.[a-z][a-z_0-9]*)+\b(?!/)", text)) - internal):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # a function, or a compiler that is not installed
        names = {f"{name}.{child}" for child in module.__all__}  # a package of documented modules
        assert not module.__all__ or name in _DOCUMENTED or names <= _DOCUMENTED.keys(), name


def _is_described_by_words(line: str) -> bool:
    """Whether tools/nccl_reference.py, and so the reference, describes what is missing."""
    if match := re.match(r"pynccl\.raw\.Library\.(nccl\w+):", line):
        return bool(nccl_reference.function(match[1]))
    if match := re.match(r"pynccl\.raw\.(\w+_t)\.(\w+): no docstring$", line):
        return bool(nccl_reference.field(match[1], match[2]))
    if match := re.match(r"pynccl\.nccl\.Config\.(\w+): no docstring$", line):
        return bool(nccl_reference.field("ncclConfig_t", nccl_reference.CONFIG_FIELDS[match[1]]))
    return False


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's reduce_op
@pytest.mark.parametrize("module", sorted(_DOCUMENTED))
def test_docstrings_describe_parameters_results_and_errors(module: str) -> None:
    _import(module)
    lacking = docstrings.of_module(module)
    assert [line for line in lacking if not _is_described_by_words(line)] == []


@pytest.mark.parametrize("name", nccl_reference.functions())
def test_each_function_of_nccl_is_described(name: str) -> None:
    doc = nccl_reference.function(name)
    found = docstrings.sections(doc)
    taken = docstrings.parameters_in_stub(f"Library.{name}")
    assert docstrings.described(found.get("Args", "")) == set(taken)
    assert "Raises" in found
    assert nccl_reference.page(name)


def test_the_fields_of_structs_are_those_that_are_described() -> None:
    for struct, fields in nccl_reference.FIELDS.items():
        cls = getattr(raw, struct)
        members = {name for name in dir(cls) if name[0] != "_" and name != "address"}
        assert members == set(fields), struct


def test_every_environment_variable_is_in_the_reference() -> None:
    page = (_ROOT / "docs" / "reference" / "environment.rst").read_text()
    read = set()
    for path in (_ROOT / "pynccl").rglob("*.py"):
        read |= set(re.findall(r"environ(?:\.get\(|\[)\"(PYNCCL_\w+)\"", path.read_text()))
    for path in (_ROOT / "csrc").rglob("*.cpp"):
        read |= set(re.findall(r"getenv\(\"(PYNCCL_\w+)\"", path.read_text()))
    assert read
    assert {name for name in read if name not in page} == set()


def _poor(x: int, y: int) -> int:  # noqa: D417
    """Add.

    Args:
        x: one number.
        z: no parameter.
    """
    if x < 0:
        raise ValueError(x)
    return x + y


class _Poor:
    def __init__(self, size: int) -> None:
        """Make it."""

    def method(self) -> None:
        pass


def test_the_check_finds_what_is_missing() -> None:
    assert list(docstrings.of_value("poor", _poor)) == [
        "poor: Args has no y",
        "poor: Args has z, which is no parameter",
        "poor: no Returns",
        "poor: no Raises",
    ]
    assert list(docstrings.of_value("Poor", _Poor)) == ["Poor: no docstring"]
