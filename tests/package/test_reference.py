"""Proves that every public name and every environment variable is in the reference."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

from pynccl import nccl
from tests.support.commands import ROOT

_PAGES = sorted((ROOT / "docs" / "reference").glob("*.rst"))
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
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    for name in sorted(set(re.findall(r"\bpynccl(?:\.[a-z][a-z_0-9]*)+\b(?!/)", text)) - internal):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # a function, or a compiler that is not installed
        names = {f"{name}.{child}" for child in module.__all__}  # a package of documented modules
        assert not module.__all__ or name in _DOCUMENTED or names <= _DOCUMENTED.keys(), name


def test_every_environment_variable_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "environment.rst").read_text()
    read = set()
    for path in (ROOT / "pynccl").rglob("*.py"):
        read |= set(re.findall(r"environ(?:\.get\(|\[)\"(PYNCCL_\w+)\"", path.read_text()))
    for path in (ROOT / "csrc").rglob("*.cpp"):
        read |= set(re.findall(r"getenv\(\"(PYNCCL_\w+)\"", path.read_text()))
    assert read
    assert {name for name in read if name not in page} == set()
