"""Every public name of the mirror, checked against ``pynccl.__all__``."""

# ruff: noqa: F403

from __future__ import annotations

import pynccl
from pynccl.mirror.api.barriers import *
from pynccl.mirror.api.collectives import *
from pynccl.mirror.api.lists import *
from pynccl.mirror.api.objects import *
from pynccl.mirror.api.p2p import *
from pynccl.mirror.api.torch_names import *
from pynccl.mirror.base.backend import *
from pynccl.mirror.base.errors import *
from pynccl.mirror.base.operators import *
from pynccl.mirror.group.process_group import *
from pynccl.mirror.group.work import *
from pynccl.mirror.lifecycle.destroy import *
from pynccl.mirror.lifecycle.init import *
from pynccl.mirror.lifecycle.new_group import *
from pynccl.mirror.lifecycle.shrink import *
from pynccl.mirror.lifecycle.split import *
from pynccl.mirror.world import *

__all__ = ["names"]


def names() -> dict[str, object]:
    """Return the public names of the mirror and their values.

    Raises:
        ImportError: a name in ``pynccl.__all__`` is missing from the modules above.
    """
    wanted = [name for name in pynccl.__all__ if name not in pynccl.OWN_NAMES]
    missing = [name for name in wanted if name not in globals()]
    if missing:
        raise ImportError(f"pynccl.__all__ lists names that the mirror lacks: {missing}")
    return {name: globals()[name] for name in wanted}
