"""The examples of pynccl.weights print the output in their docstrings."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import run_command
from tests.support.tier import FULL

_ROOT = Path(__file__).parents[2]
_EXAMPLES = sorted((_ROOT / "examples" / "weights").glob("*.py"))


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda path: path.stem)
def test_examples(example: Path) -> None:
    head = ast.get_docstring(ast.parse(example.read_text())) or ""
    expected = head.partition("Prints:\n")[2]
    assert expected
    if example.stem == "ray_actors":
        if not FULL:
            pytest.skip("Ray takes half a minute: `make test-all`")
        pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_command([sys.executable, str(example)], _ROOT, env, timeout=120, popen=warm.Popen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == expected.strip()
