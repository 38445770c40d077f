"""Runs example programs by the command in their docstrings, which also list the output."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.support import warm
from tests.support.commands import ROOT, run_command

__all__ = ["Example", "read"]

_LAUNCHERS: dict[str, list[str]] = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}


@dataclass(frozen=True)
class Example:
    """A program, its command with this interpreter, and its expected output."""

    path: Path
    command: tuple[str, ...]
    prints: tuple[str, ...]

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it over hostnccl. May be called on any thread."""
        env = {
            **warm.own_environment(),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYNCCL_PROVIDER": "host",
            "OMP_NUM_THREADS": "1",
        }
        of_torch = re.search(r"import torch|pynccl as dist", self.path.read_text())
        popen = warm.Popen if of_torch else subprocess.Popen
        return run_command(self.command, ROOT, env, timeout=120, popen=popen)

    def check(self, done: subprocess.CompletedProcess[str], *, in_order: bool = True) -> None:
        """Check that it succeeded and printed the expected lines."""
        order = list if in_order else sorted
        assert done.returncode == 0, done.stdout + done.stderr
        assert order(done.stdout.splitlines()) == order(self.prints)


def read(folder: str, *others: str) -> list[Example]:
    """The examples of a folder of examples/, except ``others``.

    Not to be called on several threads: the parser of CPython 3.11 is not thread-safe.
    """
    found = []
    for path in sorted((ROOT / "examples" / folder).glob("*.py")):
        if path.stem in others:
            continue
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        head, _, prints = doc.partition("\nPrints:\n")
        line = re.search(r"^(?:Run: |    )((?:python|torchrun) .+)$", head, re.MULTILINE)
        assert line, f"{path.name}: the docstring has no command"
        assert prints, f"{path.name}: the docstring has no output"
        launcher, *words = shlex.split(line[1])
        command = (sys.executable, *_LAUNCHERS[launcher], *words)
        found.append(Example(path, command, tuple(textwrap.dedent(prints).splitlines())))
    assert found, f"{folder} has no examples"
    return found
