"""torch's own classes and functions, re-exported under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._distributed_c10d import (
    DebugLevel,
    FileStore,
    HashStore,
    TCPStore,
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed.distributed_c10d import GroupName, PrefixStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

__all__ = [
    "AllToAllOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "FileStore",
    "GatherOptions",
    "GroupName",
    "HashStore",
    "PrefixStore",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "TCPStore",
    "get_debug_level",
    "record_comm",
    "register_rendezvous_handler",
    "rendezvous",
    "set_debug_level",
    "set_debug_level_from_env",
]


@contextmanager
def record_comm(name: str) -> Iterator[None]:
    """See torch.distributed.record_comm, available since torch 2.12."""
    with torch.profiler.record_function(name):
        yield
