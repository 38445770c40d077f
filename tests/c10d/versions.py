"""The parts of torch.distributed that the installed torch provides."""

from __future__ import annotations

import pytest
import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def needs_torch(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Skip a test if torch is older, with the reason."""
    return pytest.mark.skipif(
        (major, minor) > VERSION,
        reason=f"torch {torch.__version__} does not have {what}, which {major}.{minor} brought",
    )
