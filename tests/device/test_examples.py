"""Proves that the examples of kernels that communicate are right: each compares its kernel with the
collectives. One of Triton on 2 ranks as threads; in `make test-all` all of them, which take up to a
minute of CPU to compile, also as processes and on 4 ranks. test_numba.py and test_triton.py run the
functions that they use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support import warm
from tests.support.commands import run_ahead, run_command
from tests.support.tier import FULL

_FOLDER = Path(__file__).parents[2] / "examples" / "device"
_NAMES = sorted(path.stem for path in _FOLDER.glob("*_*.py"))
_ALL = [
    (name, nranks, threads) for name in _NAMES for nranks in (2, 4) for threads in (False, True)
]
_QUICK = [("triton_all_reduce", 2, True)]
_CASES = _ALL if FULL else _QUICK

Case = tuple[str, int, bool]
Runs = dict[Case, Future["CompletedProcess[str]"]]


def _run(case: Case) -> CompletedProcess[str]:
    name, nranks, threads = case
    own = warm.own_environment()
    env = {**own, "PYTHONPATH": os.pathsep.join(sys.path), "PYNCCL_PROVIDER": "host"}
    command = [sys.executable, str(_FOLDER / f"{name}.py"), "--ranks", str(nranks)]
    command += ["--threads"] * threads
    return run_command(command, _FOLDER.parents[1], env, timeout=240, popen=warm.Popen)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The run of each case, in progress or completed."""
    with run_ahead(request, "case", _run) as started:
        yield started


@pytest.mark.parametrize(
    "case", _CASES, ids=lambda c: f"{c[0]}-{c[1]}-{'threads' if c[2] else 'processes'}"
)
def test_kernels_match_collectives(case: Case, runs: Runs) -> None:
    name, nranks, _ = case
    pytest.importorskip(name.partition("_")[0])
    done = runs[case].result()
    assert done.returncode == 0, done.stdout + done.stderr
    printed, head = done.stdout, (_FOLDER / f"{name}.py").read_text()
    expected = re.search(r"Prints, with other times:\n(.+?)\n\"\"\"", head, re.DOTALL)
    assert expected
    if nranks == 2:
        assert _without_times(printed.strip()) == _without_times(expected[1])
    assert f"rank 0 of {nranks}: " in printed


def _without_times(text: str) -> str:
    return re.sub(r"[\d.]+ us", "some us", text)
