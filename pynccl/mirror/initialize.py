"""init_process_group: how the ranks of a job find each other, by torch's own stores."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch._C._distributed_c10d import FileStore, HashStore, TCPStore
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from pynccl.mirror.backend import Backend, BackendConfig
from pynccl.mirror.meeting import meet
from pynccl.mirror.process_group import Options, ProcessGroup
from pynccl.mirror.registry import end_all, world

__all__ = [
    "FileStore",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "default_pg_timeout",
    "get_node_local_rank",
    "init_process_group",
    "is_torchelastic_launched",
    "register_rendezvous_handler",
    "rendezvous",
]

_NCCL_TIMEOUT = timedelta(minutes=10)


def timeout_of(timeout: timedelta | None, config: BackendConfig) -> timedelta:
    """The timeout of a group: as given, else torch's default for its backend.

    Raises:
        TypeError: it is not a timedelta.
    """
    if timeout is None:
        return _NCCL_TIMEOUT if config.name == Backend.NCCL else default_pg_timeout
    if not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout}"
        )
    return timeout


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    _ranks: list[int] | None = None,
) -> None:
    """Make the default group, of all ranks of the job.

    Args:
        backend: ``"nccl"`` for tensors on GPUs, ``"host"`` for tensors on CPUs,
            ``"cpu:host,cuda:nccl"`` or None for both.
        init_method: the URL by which the ranks meet: ``env://`` (the default), ``tcp://host:port``
            or ``file:///path``.
        timeout: how long ranks wait for each other, when they meet and, on CPUs, in each operation.
        world_size: how many ranks there are; may be part of the URL or the environment.
        rank: this one; likewise.
        store: the store by which the ranks meet, instead of a URL.
        group_name: ignored, as torch does.
        pg_options: a :class:`pynccl.nccl.Config`, or torch's ``ProcessGroupNCCL.Options``.
        device_id: the device of this rank. Its communicator is then made at once. Without it, and
            where there are GPUs, communicators are made when they are first needed.

    Raises:
        ValueError: the group exists already, or an argument is wrong.
        DistStoreError: not all ranks came in time.
    """
    if world.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if store is not None:
        if init_method is not None:
            raise AssertionError("Cannot specify both init_method and store.")
        if not world_size > 0:
            raise AssertionError("world_size must be positive if using store")
        if not rank >= 0:
            raise AssertionError("rank must be non-negative if using store")
    device = device_of(device_id)
    if backend is None and device is not None:
        backend = Backend.default_device_backend_map.get(device.type)
    config = BackendConfig(Backend(Backend.UNDEFINED if backend is None else backend))
    limit = timeout_of(timeout, config)
    options = Options(pg_options)
    if store is None:
        store, rank, world_size = next(
            rendezvous(init_method or "env://", rank, world_size, timeout=limit)
        )
        store.set_timeout(limit)
    # Apart from torch.distributed, which may use the same store in the same process.
    store = PrefixStore("pynccl", store)
    pg = ProcessGroup(
        store,
        list(range(world_size)),
        rank,
        name=world.hashed_name(_ranks) if _ranks else world.next_name(),
        config=config,
        timeout=limit,
        options=options,
        desc="default_pg",
        device_id=device,
    )
    world.default, world.store = pg, store
    world.add(pg)
    try:
        pg.open_at_once()
        meet_after_creation(pg.store, pg, world_size)
    except BaseException:
        end_all(ProcessGroup.abort)
        raise
    _name_rank_in_tracebacks(rank)


def device_of(device_id: torch.device | int | None) -> torch.device | None:
    """A device_id argument as a device with an index.

    Raises:
        ValueError: there is no such device.
    """
    if device_id is None:
        return None
    if isinstance(device_id, int):
        if not torch.cuda.is_available():
            raise ValueError("device_id is an int, but no accelerator support is found")
        device_id = torch.device("cuda", device_id)
    if device_id.type == "cpu":
        return device_id
    if device_id.type != "cuda" or not torch.cuda.is_available():
        raise ValueError(f"device_id {device_id} does not match the accelerators of this machine")
    if device_id.index is None:
        raise ValueError("Please use a device_id with index.")
    if device_id.index >= torch.cuda.device_count():
        raise ValueError(
            f"device_id {device_id} is out of range. Please use a device index less than the "
            f"number of accelerators available: {torch.cuda.device_count()}."
        )
    return device_id


def meet_after_creation(store: Store, pg: ProcessGroup, size: int) -> None:
    """Wait for the other ranks where ``TORCH_DIST_INIT_BARRIER=1`` asks for it."""
    if int(os.environ.get("TORCH_DIST_INIT_BARRIER", "0")) == 1:
        rank = pg.rank() if size == pg.size() else world.default.rank()  # type: ignore[union-attr]
        meet(store, f"barrier after init {pg.group_name}", rank, size, pg.timeout, lambda: b"")


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This rank among those of its machine, as the launcher says in ``LOCAL_RANK``.

    Raises:
        RuntimeError: it does not say, and there is no fallback.
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
        "`get_node_local_rank` to work, assuming you are not running in a multi-device context "
        "and want the code to run locally instead."
    )


def _name_rank_in_tracebacks(rank: int) -> None:
    """Write ``[rank0]:`` before each line of what ends this process, as torch does."""
    previous: Callable[..., Any] = sys.excepthook
    if previous is not sys.__excepthook__:
        return  # somebody else's hook, or torch's: the rank is there already, or not wanted

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for part in traceback.format_exception(kind, error, trace):
            for line in part.rstrip("\n").split("\n"):
                sys.stderr.write(f"[rank{rank}]: {line}\n")

    sys.excepthook = hook
