"""Ranks that share a GPU of the double get few CTAs by default."""

from __future__ import annotations

import pytest

from tests.support import gpu


def test_ranks_that_share_a_gpu_have_few_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    assert gpu.environment(gpu.count(), 0) == {}
    assert gpu.environment(gpu.count() + 1, 0)["NCCL_MAX_CTAS"] == "4"


def test_the_users_choice_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MAX_CTAS", "2")
    assert "NCCL_MAX_CTAS" not in gpu.environment(gpu.count() + 1, 0)
