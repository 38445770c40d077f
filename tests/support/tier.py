"""The test tier: short (`make test`) or full (`make test-all`, which sets PYNCCL_TEST_FULL)."""

from __future__ import annotations

import os

__all__ = ["FULL"]

FULL = bool(os.environ.get("PYNCCL_TEST_FULL"))
