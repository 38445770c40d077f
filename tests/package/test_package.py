"""Proves properties of the whole package: names that resolve, files that stay small, examples that
run as their heads say, and imports that load nothing unnecessary.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import pynccl
from tests.support import warm
from tests.support.commands import python_output, run_ahead, run_command
from tests.support.tier import FULL

_ROOT = Path(__file__).parents[2]
_MODULES = [
    "pynccl",
    *(module.name for module in pkgutil.walk_packages(pynccl.__path__, "pynccl.")),
]
_EXAMPLES = sorted((_ROOT / "examples").glob("*.py"))
_LONGEST = 800  # lines

Run = Future[subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("name", [name for name in _MODULES if not name.endswith("._C")])
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
    found = re.search(r'^version = "(.+)"$', (_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    assert pynccl.__version__ == found[1]
    citation = (_ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {found[1]}\n" in citation
    assert f"\n## {found[1]}" in (_ROOT / "CHANGELOG.md").read_text()


def test_pythons_are_the_same_everywhere() -> None:
    project = (_ROOT / "pyproject.toml").read_text()
    classifiers = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', project)
    minors = [int(minor) for minor in classifiers]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert f'requires-python = ">=3.{minors[0]}"' in project
    assert re.findall(r'"cp3(\d+)-\*"', project) == classifiers
    first_and_last = f"3.{minors[0]} to 3.{minors[-1]}"
    for document in ("README.md", "docs/compatibility.md"):
        assert first_and_last in (_ROOT / document).read_text(), document


@pytest.mark.parametrize("folder", ["csrc", "pynccl"])
def test_no_file_is_too_long(folder: str) -> None:
    """Except those that docs/architecture.md gives a reason for."""
    excused = (_ROOT / "docs" / "architecture.md").read_text()
    long = {}
    for path in (_ROOT / folder).rglob("*"):
        if path.suffix in (".h", ".cpp", ".inc", ".in", ".py", ".pyi", ".txt"):
            lines = len(path.read_text().splitlines())
            if lines > _LONGEST and path.name not in excused:
                long[str(path.relative_to(_ROOT))] = lines
    assert not long


def _command(example: Path) -> list[str]:
    """The line `Run: ...` in the head of an example, with this interpreter for python and its
    tools.
    """
    found = re.search(r"^Run: (.+)$", example.read_text(), re.MULTILINE)
    assert found, f"{example.name} does not say how it is run"
    words = shlex.split(found[1])
    if "=" in words[0]:
        words.insert(0, "env")
    modules = {"torchrun": "torch.distributed.run"}
    start = next(
        (i for i, word in enumerate(words) if word in ("python", "python3", *modules)), None
    )
    if start is not None:
        module = modules.get(words[start])
        words[start : start + 1] = [sys.executable, *(["-m", module] if module else [])]
    return words


def _prints(example: Path) -> list[str]:
    """The lines after ``Prints:`` in the head of an example."""
    doc = ast.get_docstring(ast.parse(example.read_text()))
    assert doc is not None
    _, found, lines = doc.partition("\nPrints:\n")
    assert found, f"{example.name} does not say what it prints"
    return lines.splitlines()


def _popen(example: Path) -> Callable[..., subprocess.Popen[str]]:
    of_python = _command(example)[0] == sys.executable
    return warm.Popen if of_python and "import torch" in example.read_text() else subprocess.Popen


def _run(example: Path) -> subprocess.CompletedProcess[str]:
    own = warm.own_environment()
    env = {**own, "PYTHONPATH": os.pathsep.join(sys.path), "PYNCCL_PROVIDER": "host"}
    return run_command(_command(example), _ROOT, env, timeout=120, popen=_popen(example))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Path, Run]]:
    """The run of each example, under way or done."""
    with run_ahead(request, "example", _run) as started:
        yield started


# torchrun: mirror/test_mirror_launch.py; torch.compile: ops/test_ops.py, c10d/test_compiled.py; an
# overlap: lab/test_examples.py; Triton: test_kernels.py, docs/tutorial/8-device-api.md.
_LONG = () if FULL else ("all_reduce_torchrun", "overlap", "torch_compile", "triton_kernels")


@pytest.mark.parametrize(
    "example", [e for e in _EXAMPLES if e.stem not in _LONG], ids=lambda path: path.stem
)
def test_examples_run_as_their_heads_say(example: Path, runs: dict[Path, Run]) -> None:
    """Their output is that in their heads, except for the order of the ranks."""
    done = runs[example].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(_prints(example))


def test_there_are_examples() -> None:
    assert len(_EXAMPLES) >= 4


@pytest.mark.parametrize(
    "module", ["pynccl", "pynccl.nccl", "pynccl.raw", "pynccl.libraries", "pynccl.device"]
)
def test_neither_torch_nor_numpy_is_imported(module: str) -> None:
    others = {"torch", "numpy", "cuda", "triton", "numba"}
    code = f"import sys, {module}; print({others} & sys.modules.keys())"
    assert python_output(code) == "set()"
