"""Proves that PyTorch's own tests pass over the backend and over the mirror: a part of them, at two
ranks; `make test-torch-suite` runs all, at two and at four ranks.
"""

from __future__ import annotations

import pytest

from tests.support.launcher import Launcher
from tests.support.tier import FULL

pytest.importorskip("expecttest", reason="torch.testing needs it")

from tests.support import torch_suite

EVERY = 5 if FULL else 25  # of the tests that need not fail


@pytest.mark.parametrize("subject", ["backend", "mirror"])
def test_torch_suite(launch: Launcher, subject: str) -> None:
    names = [
        name
        for name in torch_suite.test_names()
        if not torch_suite.reason_of_exception(subject, name, 2)
    ]
    passed = 0
    for name in names[::EVERY]:
        result = torch_suite.run(launch, name, 2, subject)
        assert result.outcome != "failed", f"{name}: {result.why}"
        passed += result.outcome == "passed"
    assert passed > 40 // EVERY
