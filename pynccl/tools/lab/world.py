"""The ranks of a command: those of torchrun, or processes that are launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pynccl import nccl
from pynccl.testing import Launcher, Rank

__all__ = ["is_under_torchrun", "run"]

T = TypeVar("T")


def is_under_torchrun() -> bool:
    """Whether this process is a rank that torchrun has started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


def run(
    nranks: int,
    function: Callable[..., T],
    args: tuple[Any, ...],
    provider: str,
    env: Mapping[str, str] | None = None,
) -> T | None:
    """Call ``function(comm, *args)`` on all ranks.

    Without OMP_NUM_THREADS in the environment the ranks that are launched share the CPUs: that many
    threads divided by the ranks, for the operations of torch and NumPy. torchrun makes it 1.

    Args:
        nranks: how many to launch; under torchrun its own number counts.
        function: at the top level of a module.
        args: what can be pickled.
        provider: "host" or "cuda".
        env: variables of processes that are launched.

    Returns:
        What rank 0 returned; None in the processes of other ranks.

    Raises:
        LaunchError: a launched rank failed.
        ValueError: torchrun has started fewer ranks.
    """
    if not is_under_torchrun():
        with Launcher() as launcher:
            results = launcher.launch(
                nranks,
                _call,
                (function, *args),
                provider=provider,
                timeout=None,
                fresh=True,
                env={**_threads(nranks), **(env or {})},
            )
        first: T = results[0]
        return first
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(rendezvous("env://"))
    if world_size < nranks:
        raise ValueError(f"ranks: {nranks} are asked for, torchrun has started {world_size}")
    if rank == 0:
        store.set("pynccl.lab", bytes(nccl.get_unique_id(provider)))
    unique_id = nccl.UniqueId(store.get("pynccl.lab"))
    device = int(os.environ["LOCAL_RANK"]) if provider == "cuda" else None
    result: T
    with nccl.Communicator(world_size, unique_id, rank, provider=provider, device=device) as comm:
        result = function(comm, *args)
    return result if rank == 0 else None


def _threads(nranks: int) -> dict[str, str]:
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // nranks))}


def _call(rank: Rank, function: Callable[..., T], *args: object) -> T:
    return function(rank.comm, *args)
