"""pynccl doctor on the double.

It checks the provider "cuda" with two ranks, on one and on several GPUs, and reports missing driver
functions.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import library
from tests.support.commands import run_command

_DEADLINE = 120  # seconds; ranks over "cuda" import torch
_DOCTOR = [sys.executable, "-m", "pynccl", "doctor", "--provider", "cuda", "--timeout", "60"]


def _doctor(**more: str) -> tuple[int, dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    done = run_command([*_DOCTOR, "--json"], Path("/"), env, _DEADLINE)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def _said(found: dict[str, Any], area: str) -> list[tuple[str, str]]:
    return [(one["level"], one["text"]) for one in found["findings"] if one["area"] == area]


def test_several_gpus() -> None:
    code, found = _doctor()
    assert code == 0, found
    (ranks,) = _said(found, "2 ranks over cuda")
    assert ranks[0] == "ok"
    assert "1 MiB are correct between 2 processes (" in ranks[1]
    texts = [text for _, text in _said(found, "provider cuda")]
    assert any(text.startswith("GPUs: 0: ") and "3: " in text for text in texts)
    assert any(text.startswith("driver for CUDA ") for text in texts)


@pytest.mark.parametrize("version", ["2.28", "2.32"])
def test_one_gpu(version: str) -> None:
    """The ranks share the GPU as each NCCL version allows."""
    code, found = _doctor(CUDA_DOUBLE_DEVICES="1", **library.of_version(version))
    assert code == 0, found
    (ranks,) = _said(found, "2 ranks over cuda")
    assert "between 2 processes that share the GPU" in ranks[1]


def test_no_gpu() -> None:
    code, found = _doctor(CUDA_DOUBLE_DEVICES="0")
    assert code == 1
    assert _said(found, "provider cuda")[-1][0] == "problem"
    assert _said(found, "2 ranks over cuda") == []
