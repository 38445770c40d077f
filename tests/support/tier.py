"""How much the tests do: `make test`, or all of it by PYNCCL_TEST_FULL in `make test-all`."""

from __future__ import annotations

import os

__all__ = ["FULL"]

FULL = bool(os.environ.get("PYNCCL_TEST_FULL"))
