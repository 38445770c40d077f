"""Runs a function of the backend's tests in each rank's process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.support.rank import Rank


def run_in_torch(
    rank: Rank,
    function: Callable[..., Any],
    url: str,
    init: dict[str, Any],
    args: tuple[Any, ...],
) -> Any:
    """Call a function between init_process_group and destroy_process_group.

    If each rank has a GPU, it is its current device, and ``device_id=True`` binds the group to
    it.
    """
    import torch
    import torch.distributed as dist

    import pynccl.c10d  # noqa: F401 - it registers the backend

    if rank.device is not None:
        torch.cuda.set_device(rank.device)
        if init.get("device_id"):
            init = {**init, "device_id": torch.device("cuda", rank.device)}
    options = {"backend": "pynccl", "timeout": timedelta(seconds=30), **init}
    dist.init_process_group(init_method=url, world_size=rank.nranks, rank=rank.rank, **options)
    try:
        return function(rank.rank, rank.nranks, *args)
    finally:
        dist.destroy_process_group()


def run_with_dist(
    rank: Rank,
    function: Callable[..., Any],
    url: str,
    init: dict[str, Any],
    args: tuple[Any, ...],
) -> Any:
    """Do the same with a function of the mirror's tests, whose first argument is the module."""
    import torch.distributed as dist

    return run_in_torch(rank, functools.partial(function, dist), url, init, args)


def set_event(name: str) -> None:
    """Notify ranks in wait_event() through the store of the default group."""
    import torch.distributed as dist

    dist.distributed_c10d._get_default_store().set(f"event {name}", "")


def wait_event(name: str) -> None:
    """Wait until another rank has set the event, without using a communicator."""
    import torch.distributed as dist

    dist.distributed_c10d._get_default_store().get(f"event {name}")


def cpu_communicator(group: Any = None) -> Any:
    """The communicator of a group for CPUs; None is the default group, which a barrier connects."""
    import torch
    import torch.distributed as dist

    import pynccl.c10d

    device = torch.device("cpu")
    if pynccl.c10d.communicator(group, device) is None:
        dist.barrier(group)
    return pynccl.c10d.communicator(group, device)


def backend_of(group: Any = None, device: str = "cpu") -> Any:
    """The backend of a group for a device type; None is the default group."""
    import torch
    import torch.distributed as dist

    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device(device))
