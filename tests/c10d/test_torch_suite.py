"""Proves that PyTorch's own tests pass over the backend and over the mirror: some of them, with two
ranks. `make test-torch-suite` runs all, with two and four ranks.
"""

from __future__ import annotations

import pytest

from tests.support.launcher import Launcher
from tests.support.tier import FULL

pytest.importorskip("expecttest", reason="torch.testing needs it")

from tests.support import torch_suite

EVERY = 5 if FULL else 20  # of the tests


@pytest.mark.parametrize("subject", ["backend", "mirror"])
def test_torch_suite(launch: Launcher, subject: str) -> None:
    passed = 0
    for name in torch_suite.test_names()[::EVERY]:
        if torch_suite.reason_of_exception(subject, name, 2):
            continue
        result = torch_suite.run(launch, name, 2, subject)
        assert result.outcome != "failed", f"{name}: {result.why}"
        passed += result.outcome == "passed"
    assert passed > 40 // EVERY
