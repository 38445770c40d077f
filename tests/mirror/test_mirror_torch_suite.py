"""Proves that PyTorch's own tests pass: the first ones without an exception, at two ranks, as many
as there is time for; `make test-torch-suite` runs all of them, at two and at four ranks.
"""

from __future__ import annotations

import time

import pytest

from tests.support.launcher import Launcher
from tests.support.tier import FULL

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing needs it")

from tests.support import torch_suite

SECONDS = 45 if FULL else 5
ENOUGH = 30 if FULL else 15  # that pass, also when there is no time left


def test_torch_suite(launch: Launcher) -> None:
    until = time.monotonic() + SECONDS
    outcomes: list[str] = []
    for name in torch_suite.test_names():
        if time.monotonic() > until and outcomes.count("passed") > ENOUGH:
            break
        if torch_suite.reason_of_exception("mirror", name, 2):
            continue
        result = torch_suite.run(launch, name, 2, "mirror")
        assert result.outcome != "failed", f"{name}: {result.why}"
        outcomes.append(result.outcome)
    assert outcomes.count("passed") > ENOUGH
