"""pynccl as a backend of torch.distributed, registered as ``"pynccl"`` on import.

    import pynccl.c10d
    torch.distributed.init_process_group("pynccl")

The backend is a C++ extension that is built for the installed torch on first use: see
:mod:`pynccl.c10d.build`.
"""

from __future__ import annotations

import atexit
import copy
import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pynccl._internal.rendezvous import of_attempt
from pynccl.c10d.build import load
from pynccl.c10d.connector import Connector, leave_stores

if TYPE_CHECKING:
    from pynccl import nccl

__all__ = ["communicator", "options", "register"]


def options(*, config: nccl.Config | None = None, is_high_priority_stream: bool = False) -> Any:  # noqa: ANN401
    """Return options for ``pg_options=`` of init_process_group and new_group.

    Args:
        config: the configuration of the communicators.
        is_high_priority_stream: whether asynchronous operations run on a high-priority stream.

    Returns:
        The backend's Options object, with these two attributes.
    """
    created = _module().Options()
    created.config = config
    created.is_high_priority_stream = is_high_priority_stream
    return created


def communicator(group: dist.ProcessGroup | None, device: torch.device) -> nccl.Communicator | None:
    """Return the communicator of a process group.

    Args:
        group: a group with this backend; None is the default group.
        device: the device of the tensors.

    Returns:
        The communicator, or None before the first operation on the device.
    """
    found = group or dist.group.WORLD
    assert found is not None
    backend: Any = found._get_backend(device)
    comm: nccl.Communicator | None = backend.communicator(device)
    return comm


@functools.cache
def _module() -> ModuleType:
    """Load the backend's module; its threads leave Python before the interpreter ends."""
    module = load()
    atexit.register(leave_stores)
    atexit.register(module._leave, leave_stores)  # runs first
    return module


def _default_connector() -> Connector | None:
    """Return the connector of the default group, which knows the processes of all ranks."""
    default: Any = dist.group.WORLD
    for device in default._device_types if default else []:
        backend = default._get_backend(device)
        if isinstance(backend, _module().PyncclBackend):
            connector: Connector = backend._connector
            return connector
    return None


def _create(given: Any, pg_options: Any) -> Any:  # noqa: ANN401
    """Create the backend of a group. Called by torch."""
    module = _module()
    if not isinstance(pg_options, (module.Options, type(None))):
        raise TypeError(
            f"pg_options: expected pynccl.c10d.options(), got {type(pg_options).__name__}"
        )
    reconfigures = getattr(given, "enable_reconfigure", False)  # since torch 2.14
    if given.group_rank >= given.group_size and not reconfigures:
        raise ValueError(
            f"rank: {given.group_rank} is out of range for a group of size {given.group_size}"
        )
    # A copy, because the same options can be passed for several groups.
    chosen = module.Options() if pg_options is None else copy.copy(pg_options)
    chosen._timeout = given.timeout
    chosen.group_name = given.group_id
    chosen.global_ranks_in_group = given.global_ranks_in_group
    if reconfigures:
        chosen.enable_reconfigure = True
    default = _default_connector()
    connector = Connector(
        of_attempt(given.store),
        given.group_rank,
        given.group_size,
        name=given.group_id,
        timeout=given.timeout.total_seconds(),
        config=chosen.config,
        gone=default.gone_among(given.global_ranks_in_group) if default else None,
    )
    return module.PyncclBackend(connector, given.group_rank, given.group_size, chosen)


def register() -> None:
    """Register the backend with torch.distributed, once."""
    if "pynccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("pynccl", _create, extended_api=True, devices=["cpu", "cuda"])
        _name_shrunk_groups()


def _name_shrunk_groups() -> None:
    # torch's shrink_group always names the new group's backend "gloo" on CPUs and "nccl" on GPUs,
    # and DistributedDataParallel then casts it to torch's class of that name.
    create = getattr(dist.distributed_c10d, "_create_shrunk_process_group", None)
    if create is None:
        return

    @functools.wraps(create)
    def create_named(new_backend: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        group = create(new_backend, *args, **options)
        if new_backend.name() == "pynccl":
            custom = dist.ProcessGroup.BackendType.CUSTOM
            for device in group._device_types:
                group._register_backend(device, custom, new_backend)
            group._set_default_backend(custom)
        return group

    dist.distributed_c10d._create_shrunk_process_group = create_named


register()
