"""init_process_group: creates the default group, with a rendezvous through torch's stores."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pynccl import _C
from pynccl._internal.processes import Process
from pynccl._internal.rendezvous import Rendezvous, of_attempt
from pynccl.mirror.base.backend import Backend, BackendConfig, check_usable, timeout_of
from pynccl.mirror.base.job import Job
from pynccl.mirror.group.process_group import Options, ProcessGroup
from pynccl.mirror.group.profiling import show_operations
from pynccl.mirror.lifecycle.destroy import end_all
from pynccl.mirror.world import world

__all__ = ["init_process_group"]


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: object | None = None,
    device_id: torch.device | int | None = None,
    _ranks: list[int] | None = None,
) -> None:
    """See torch.distributed.init_process_group (ncclCommInitRankConfig).

    The backends, the options and the device binding differ from torch's.

    Args:
        backend: ``"nccl"`` for tensors on GPUs, ``"host"`` for tensors on CPUs,
            ``"cpu:host,cuda:nccl"`` or None for both. ``"nccl"`` raises ValueError without a GPU
            and LibraryNotFoundError without libnccl.so.2, before the ranks wait for each other.
        timeout: the timeout; None is 10 minutes for ``"nccl"`` alone, else 30 minutes.
        group_name: ignored, as in torch.
        pg_options: a :class:`pynccl.nccl.Config` (without ``blocking=0``) or torch's
            ``ProcessGroupNCCL.Options``.
        device_id: the device of this rank. Its communicator is then created eagerly, and sends and
            receives outside a batch use it as well. On GPUs without device_id, communicators are
            created on first use.

    Raises:
        ValueError: the rank is not in the world or has joined before, or a backend or an option is
            not supported.
        DistStoreError: not all ranks called it before the timeout.
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
    device = _device_of(device_id)
    if backend is None and device is not None:
        backend = Backend.default_device_backend_map.get(device.type)
    config = BackendConfig(Backend(Backend.UNDEFINED if backend is None else backend))
    check_usable(config)
    limit = timeout_of(timeout, config)
    options = Options(pg_options)
    if store is None:
        store, rank, world_size = next(
            rendezvous(init_method or "env://", rank, world_size, timeout=limit)
        )
        store.set_timeout(limit)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank: {rank} is out of range for a world of {world_size} ranks")
    store = _job_store(store, rank, world_size, limit)
    pg = ProcessGroup(
        Job(store, rank, range(world_size)),
        list(range(world_size)),
        rank,
        name=world.hashed_name(_ranks) if _ranks else world.next_name(),
        config=config,
        timeout=limit,
        options=options,
        desc="default_pg",
        device_id=device,
    )
    world.default = pg
    _C.set_process_rank(rank)
    world.add(pg)
    try:
        _connect(pg)
    except BaseException:
        end_all(ProcessGroup.abort)
        raise
    _name_rank_in_tracebacks(rank)
    show_operations()


def _job_store(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """Return the store of one job, with a prefix that differs from later jobs of the same ranks.

    Each rank calls this once per job, so the number of previous calls identifies the job.
    torch.distributed may use the same store in the same process, so all keys have a prefix.
    """
    store = PrefixStore("pynccl", of_attempt(store))

    def join(_answer: object) -> tuple[int, int]:
        job = (store.add("calls", 1) - 1) // size
        return job, store.add(f"{job}/rank {rank}", 1)

    job, joined = Rendezvous(store, rank).call(join, "init_process_group", timeout.total_seconds())
    if joined > 1:
        raise ValueError(
            f"rank: {rank} has joined this job before; another process uses the same rank, or "
            "init_process_group was called again before all ranks had joined"
        )
    return PrefixStore(str(job), store)


def _connect(pg: ProcessGroup) -> None:
    """Exchange process information between the ranks, and create the first communicator."""
    own = json.dumps(Process.own()).encode()
    values = pg.rendezvous.gather(
        "init_process_group", range(pg.size()), own, pg.timeout.total_seconds()
    )
    pg.job.processes = [Process(*json.loads(value)) for value in values]
    pg.open_eagerly()


def _device_of(device_id: torch.device | int | None) -> torch.device | None:
    """Return a device_id argument as a device with an index.

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


def _name_rank_in_tracebacks(rank: int) -> None:
    """Prefix each line of an uncaught exception with ``[rank0]:``, as torch does."""
    previous: Callable[..., Any] = sys.excepthook
    if previous is not sys.__excepthook__:
        return  # another hook is installed, perhaps torch's, which also adds the rank

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for part in traceback.format_exception(kind, error, trace):
            for line in part.rstrip("\n").split("\n"):
                sys.stderr.write(f"[rank{rank}]: {line}\n")

    sys.excepthook = hook
