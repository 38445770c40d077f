"""Proves properties of the whole package: names resolve, files stay small, examples run as
documented, and imports load nothing unnecessary.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import pynccl
from tests.support import examples
from tests.support.commands import ROOT, Run, python_output, run_ahead
from tests.support.tier import FULL

_MODULES = [
    "pynccl",
    *(module.name for module in pkgutil.walk_packages(pynccl.__path__, "pynccl.")),
]
_EXAMPLES = [*examples.read(""), *examples.read("weights")]
_LONGEST = 800  # lines


# The extension module, and the names of the mirror that pynccl.__all__ lists.
_WITHOUT_LIST = ("pynccl._C", "pynccl.mirror.api.public")


@pytest.mark.parametrize("name", [name for name in _MODULES if name not in _WITHOUT_LIST])
def test_all_names_resolve(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        optional = ("pynccl.device.", "pynccl.weights.adapters.")
        if not name.startswith(optional) or str(error.name).startswith("pynccl"):
            raise
        pytest.skip(f"{error.name} is not installed")
    assert isinstance(module.__all__, list)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert hasattr(module, public), public


def test_version_is_that_of_pyproject() -> None:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    assert pynccl.__version__ == found[1]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {found[1]}\n" in citation
    assert f"\n## {found[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_pythons_are_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    classifiers = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', project)
    minors = [int(minor) for minor in classifiers]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert f'requires-python = ">=3.{minors[0]}"' in project
    assert re.findall(r'"cp3(\d+)-\*"', project) == classifiers
    first_and_last = f"3.{minors[0]} to 3.{minors[-1]}"
    for document in ("README.md", "docs/compatibility.md"):
        assert first_and_last in (ROOT / document).read_text(), document


@pytest.mark.parametrize("folder", ["csrc", "pynccl"])
def test_no_file_is_too_long(folder: str) -> None:
    """Except those listed with a reason in docs/architecture.md."""
    excused = (ROOT / "docs" / "architecture.md").read_text()
    long = {}
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".h", ".cpp", ".inc", ".in", ".py", ".pyi", ".txt"):
            lines = len(path.read_text().splitlines())
            if lines > _LONGEST and path.name not in excused:
                long[str(path.relative_to(ROOT))] = lines
    assert not long


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[examples.Example, Run]]:
    """The run of each example, in progress or completed."""
    with run_ahead(request, "example", examples.Example.run) as started:
        yield started


# torchrun: mirror/test_mirror_launch.py; torch.compile: ops/test_ops.py, c10d/test_compiled.py.
_LONG = ("all_reduce_torchrun", "torch_compile")


@pytest.mark.parametrize(
    "example",
    [e for e in _EXAMPLES if FULL or e.path.stem not in _LONG],
    ids=lambda e: e.path.stem,
)
def test_examples_run_as_their_heads_say(
    example: examples.Example, runs: dict[examples.Example, Run]
) -> None:
    """Their output is that in their docstrings, except for the order of the ranks."""
    example.check(runs[example].result(), in_order=example.path.parent.name == "weights")


@pytest.mark.parametrize(
    "module", ["pynccl", "pynccl.nccl", "pynccl.raw", "pynccl.libraries", "pynccl.device"]
)
def test_neither_torch_nor_numpy_is_imported(module: str) -> None:
    others = {"torch", "numpy", "cuda", "triton", "numba"}
    code = f"import sys, {module}; print({others} & sys.modules.keys())"
    assert python_output(code) == "set()"
