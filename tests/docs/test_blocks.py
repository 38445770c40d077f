"""Proves that every fenced block of README.md and docs/ behaves as documented: it is executed, or
is output, or a comment before it gives the reason why it cannot run here.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.session import BlockError, commands
from tests.support import warm
from tests.support.commands import run_ahead, run_command

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]
_SECONDS = 240.0  # for a page; the backend of torch is built in one of them
_PAGES = sorted(
    path.relative_to(_ROOT).as_posix()
    for path in (_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md"))
    if "_build" not in path.parts
    and not path.parent.name.startswith("bench-")  # the tables of docs/results
)
_FORKS = _ROOT / "tests" / "docs" / "forks.py"
_MODULES = ("torch", "torch._dynamo", "torch.distributed.fsdp")  # of optimizers, and of one page
# The commands that a page calls by name, in this interpreter.
_COMMANDS = {
    "python": "",
    "pynccl": "-m pynccl",
    "torchrun": "-m tests.docs.torchrun",
    "pytest": "-m pytest",
}


def _read(page: str) -> blocks.Page:
    return blocks.read(_ROOT / page)


def _executed(page: str) -> bool:
    read = _read(page)
    return read.run_by is None and any(block.is_executed for block in read.blocks)


_RUN = [page for page in _PAGES if _executed(page)]


def _environment(folder: Path, socket: Path | None = None) -> dict[str, str]:
    """The environment of a user who has installed pynccl, with this interpreter's commands.

    Args:
        folder: for the commands.
        socket: of the process that forks them, if there is one.
    """
    programs = folder / "bin"
    programs.mkdir()
    # Speed does not matter here, and optimization takes most of a compiler's time.
    scripts = {"g++": f'{shutil.which("g++")} "$@" -O0'}
    for name, arguments in _COMMANDS.items():
        interpreter = f'"{sys.executable}" {arguments}'
        if socket is not None:
            interpreter = f'"{sys.executable}" -I -S "{_FORKS}" "{socket}" {arguments}'
        scripts[name] = f'{interpreter} "$@"'
    for name, command in scripts.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\nexec {command}\n")
        program.chmod(0o755)
    of_the_tests = ("HOSTNCCL_STRICT", "HOSTNCCL_CONNECT", "LD_PRELOAD")
    own = warm.own_environment()
    kept = {name: value for name, value in own.items() if name not in of_the_tests}
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "PATH": os.pathsep.join(
            (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
        ),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "PYNCCL_PROVIDER": "host",
        "PET_STANDALONE": "1",  # torchrun takes a free port: two pages run at a time
    }


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """How each page ended."""
    socket = tmp_path_factory.mktemp("forks") / "socket"

    def run(page: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp(Path(page).stem)
        work = folder / "work"
        work.mkdir()
        for name in ("examples", "benchmarks"):
            (work / name).symlink_to(_ROOT / name)
        env = _environment(folder, socket)
        python = str(folder / "bin" / "python")
        # By sh, which reads the script: it is busy while a fork of the other thread has it open.
        command = ["sh", python, "-m", "tests.docs.session", str(_ROOT / page), str(_SECONDS)]
        # A command of the page has its remaining time, so that none outlives the session.
        return run_command(command, work, env, _SECONDS + 20)

    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT)}
    with (
        contextlib.closing(warm.start(env, _MODULES, str(socket))),
        run_ahead(request, "page", run) as found,
    ):
        yield found


@pytest.mark.parametrize("page", _RUN)
def test_page_runs(
    ends: dict[str, Future[subprocess.CompletedProcess[str]]],
    page: str,
) -> None:
    end = ends[page].result()
    print(end.stderr)  # the time of each block
    assert end.returncode == 0, end.stderr


@pytest.mark.parametrize("name", _PAGES)
def test_blocks_are_marked(name: str) -> None:
    """Each block has a known kind; blocks that do not run have a reason, and valid Python."""
    page = _read(name)
    faults = [fault for block in page.blocks for fault in block.faults()]
    for block in page.blocks:
        if block.kind == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                faults.append(f"line {block.line}: {error}")
        reason = block.marks.get("test", "")
        if reason.startswith("run by"):
            faults += _wrong_test(reason.removeprefix("run by "), name)
    if page.run_by is not None:
        faults += _wrong_test(page.run_by, name)
    assert not faults, f"{name}: " + "\n".join(faults)


def _wrong_test(test: str, page: str) -> list[str]:
    """The error of the test that is named to run a block; it must read the page."""
    path = _ROOT / test
    if not path.is_file():
        return [f"there is no test {test}"]
    return [] if Path(page).name in path.read_text() else [f"{test} does not read {page}"]


def _page(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "page.md"
    path.write_text(text)
    command = [sys.executable, "-m", "tests.docs.session", str(path), "20"]
    return run_command(command, tmp_path, _environment(tmp_path), 40)


_WRONG = {
    "an error": "```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```",
    "a wrong output": "```python\nprint(1)\n```\n```text\n2\n```",
    "a wrong output of a command": "```console\n$ echo 1\n2\n```",
    "a wrong status": "```console\n$ false\n```",
    "a wrong file": "<!-- file: a.py -->\n```python\nx = y\n```\n\n```console\n$ python a.py\n```",
    "an error of a rank": "<!-- ranks: 2 -->\n```python\nassert rank == 0\n```",
    "a wrong setup": "<!-- setup\nx = 1 / 0\n-->\n```python\nprint(x)\n```",
}


@pytest.mark.parametrize("text", _WRONG.values(), ids=_WRONG.keys())
def test_a_wrong_page_fails(tmp_path: Path, text: str) -> None:
    end = _page(tmp_path, text)
    assert end.returncode == 1
    assert "this block fails" in end.stderr


def test_console_blocks_begin_with_a_command() -> None:
    with pytest.raises(BlockError, match="begins with"):
        commands("output")
    assert commands("$ a \\\nb\nc\n$ d") == [("a \\\nb", "c\n"), ("d", "")]
