"""Runs the scripts in docs/frameworks.md on two ranks, over gloo and over pynccl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pynccl.c10d.build import build
from tests.docs import blocks

__all__ = ["same_as_over_gloo"]

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "frameworks.md"
_LIMIT = 300  # seconds; importing a framework takes up to a minute
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def same_as_over_gloo(
    folder: Path,
    title: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = _TORCHRUN,
) -> None:
    """Check that the script in a section prints the same values over both backends.

    Args:
        folder: the folder for its files.
        title: the title of the section.
        *args: arguments of the script.
        env: environment variables of the script.
        launcher: options of Python that precede the script.
    """
    build()
    first = _PAGE.read_text().splitlines().index(f"## {title}")
    scripts = [block for block in blocks.read(_PAGE).blocks if block.kind == "python"]
    (folder / "toy.py").write_text(scripts[0].text)
    text = next(block.text for block in scripts if block.line > first)
    assert '"pynccl"' in text
    printed = []
    for backend in ("gloo", "pynccl"):
        path = folder / f"over_{backend}.py"
        path.write_text(text.replace('"pynccl"', f'"{backend}"'))
        ended = subprocess.run(
            [sys.executable, *launcher, path, *args],
            check=False,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT,
        )
        assert ended.returncode == 0, ended.stdout
        printed.append(dict(re.findall(r"rank (\d) has (\[.*?\])", ended.stdout)))
        assert set(printed[-1]) == {"0", "1"}, ended.stdout
    assert printed[0] == printed[1]
