"""Proves that calls do not become more expensive: callgrind counts their instructions,
independently of the machine's load, which are compared with recorded bounds.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks import callgrind
from tests.support import warm
from tests.support.commands import run_python
from tests.support.tier import FULL

# Instructions of one call, by Python version; see docs/performance.md. Lower these figures when
# calls become cheaper; raise them only for a reason.
_RECORDED = {
    (3, 11): {
        "pynccl.raw, integers": 960,
        "pynccl Communicator, tensor": 1400,
        "pynccl Communicator, tensor, a recording is on": 1570,
        "pynccl Communicator, tensor, a trace is on": 1800,
        "pynccl group(), tensors": 22_800,
        "pynccl plan, called": 3220,
        "pynccl Communicator, NumPy array": 1030,
        "pynccl Communicator, ml_dtypes array": 1030,
        "pynccl Communicator, raw DLPack": 12_470,
        "pynccl all_reduce, tensor": 1760,
        "pynccl all_reduce, async_op=True": 5270,
        "pynccl batch_isend_irecv": 33_750,
    },
}
_ALLOWED = 1.15  # another build of the same Python or torch


_ROWS = """
from benchmarks import calls_rows
rows, missing = calls_rows.rows(["pynccl", "arrays", "mirror", "torch", "backend"])
for row in rows:
    row.timer.timeit(2)
print(len(rows), missing)
"""
_OF_TORCH = 6  # rows of torch.distributed: as many over its fake backend as over pynccl's


def test_what_traces_add_to_a_call() -> None:
    calls = pytest.importorskip("benchmarks.calls")
    call = "pynccl Communicator, tensor"
    rows = {call: 80e-9, f"{call}, a recording is on": 100e-9, f"{call}, a trace is on": 300e-9}
    results = [{"library": name, "seconds": seconds} for name, seconds in rows.items()]
    assert calls.of_traces(results) == [
        "a recording is on: 20 ns are added, at most 30 may be",
        "a trace is on: 220 ns are added, at most 150 may be: TOO MUCH",
    ]


def test_no_row_is_missing() -> None:
    pytest.importorskip("torch")
    from pynccl.c10d.build import build

    build()  # takes longer than the process may
    done = run_python("-c", _ROWS, popen=warm.Popen)
    assert done.stdout == f"{len(_RECORDED[3, 11]) + _OF_TORCH + 1} {{}}\n", done


@pytest.mark.skipif(not FULL, reason="callgrind takes a minute: in `make test-all`")
def test_instructions_of_calls() -> None:
    version = sys.version_info[:2]
    if version not in _RECORDED:
        pytest.skip(f"no instructions are recorded for Python {version[0]}.{version[1]}")
    if not callgrind.available():
        pytest.skip("needs valgrind")
    pytest.importorskip("torch")
    counts = callgrind.count(["pynccl", "arrays", "mirror"], timeout=300)
    expected = _RECORDED[version]
    assert counts.keys() == expected.keys()
    expensive = {
        name: f"{counts[name]:.0f} instructions, recorded are {recorded}"
        for name, recorded in expected.items()
        if counts[name] > recorded * _ALLOWED
    }
    assert not expensive
