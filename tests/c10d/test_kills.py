"""Proves that the survivors of a kill in training get an error, and continue with exactly the
numbers of a world that nobody has disturbed.

The long form: python -m tests.c10d.kills --kills 300.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support import warm
from tests.support.commands import run_command
from tests.support.tier import FULL

_KILLS = 50 if FULL else 2


def test_kills() -> None:
    """In a process of its own: it forks ranks, and must have no threads."""
    command = [sys.executable, "-m", "tests.c10d.kills", "--kills", str(_KILLS)]
    done = run_command(command, Path.cwd(), os.environ, timeout=900, popen=warm.Popen)
    assert done.returncode == 0, done.stdout + done.stderr
