"""An optional barrier through the store after creating groups (``TORCH_DIST_INIT_BARRIER=1``)."""

from __future__ import annotations

import os

from pynccl.errors import NcclError
from pynccl.mirror.base.errors import translated
from pynccl.mirror.group.process_group import ProcessGroup

__all__ = ["wait_for_creation"]


def wait_for_creation(name: str, pg: ProcessGroup) -> None:
    """Wait for the ranks of a group that create another one, if the variable is set."""
    if int(os.environ.get("TORCH_DIST_INIT_BARRIER", "0")) != 1:
        return
    with translated(NcclError):
        pg.rendezvous.gather(
            f"barrier after creating {name}", range(pg.size()), b"", pg.timeout.total_seconds()
        )
