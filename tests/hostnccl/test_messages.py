"""Proves that the parser of rendezvous messages accepts valid messages only: seeds and mutations of
them, in a separate program under a sanitizer. ``make fuzz`` tries more.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.fuzz.run import compile_program
from tests.support.cpp import compiler
from tests.support.tier import FULL

_INPUTS = 300_000 if FULL else 30_000


def test_any_bytes(tmp_path: Path) -> None:
    found = compiler()
    program = tmp_path / "seeds"
    try:
        sanitizers = "address,undefined" if FULL else "address"
        flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
        compile_program(found, program, ["seeds.cpp", "messages.cpp"], flags)
    except subprocess.CalledProcessError:
        compile_program(found, program, ["seeds.cpp", "messages.cpp"], [])
    result = subprocess.run(
        [program, "--mutate", str(_INPUTS)], check=True, timeout=120, capture_output=True, text=True
    )
    match = re.fullmatch(r"(\d+) of (\d+) accepted\n", result.stdout)
    assert match is not None
    accepted, tried = map(int, match.groups())
    assert tried == _INPUTS
    assert tried / 4 < accepted < tried * 3 / 4
