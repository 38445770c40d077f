"""Proves that random arguments, valid and malformed, neither crash the process nor raise an error
that does not name the argument. `make sanitize-module` runs more, under AddressSanitizer.
"""

from __future__ import annotations

import pytest

from tests.support import warm
from tests.support.commands import run_python
from tests.support.tier import FULL

_CALLS = 20_000 if FULL else 2_500


def test_random_arguments() -> None:
    pytest.importorskip("torch")
    arguments = ("-m", "tests.stress.arguments", str(_CALLS), "--seed", "0")
    done = run_python(*arguments, timeout=300, popen=warm.Popen)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"[-4000:]
    assert f"{_CALLS} calls" in done.stdout
