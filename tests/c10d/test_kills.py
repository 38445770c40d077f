"""Proves that the survivors of a kill in training get an error, and continue with exactly the
numbers of a world that nobody has disturbed.

The long form: python -m tests.c10d.kills --kills 300.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.tier import FULL

_KILLS = 50 if FULL else 2


def test_kills() -> None:
    """In a process of its own: it forks ranks, and must have no threads."""
    command = [sys.executable, "-m", "tests.c10d.kills", "--kills", str(_KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
