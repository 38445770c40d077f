"""OpenRLHF's weight updates over pynccl, parameter by parameter.

    from pynccl.weights.adapters import openrlhf

    # before OpenRLHF creates its actors
    ray.init(runtime_env={"worker_process_setup_hook": openrlhf.install})

install() replaces stateless_init_process_group(), with which OpenRLHF 0.11 creates the group of the
trainer's rank 0 and all workers of its engines. Each parameter is then broadcast by pynccl, and
every wait has a deadline. It must run in each of these processes, before OpenRLHF's trainers are
imported. Ray's hook runs it in all actors, which include vLLM's Ray workers. A process that an
actor starts for vLLM's engine runs it as well, since pynccl is a vLLM plugin
(:func:`pynccl.weights.adapters.vllm.plugin`), if the actor sets PYNCCL_OPENRLHF, as install() does.

Written for OpenRLHF 0.11.2.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

from pynccl import nccl

__all__ = ["Group", "install", "stateless_init_process_group"]

_SECONDS = 300.0


class Group:
    """The group interface that OpenRLHF uses, over a communicator of all ranks."""

    def __init__(self, comm: nccl.Communicator) -> None:
        self._comm = comm

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:  # noqa: ANN401
        """Broadcast a contiguous tensor in place on a torch stream (ncclBroadcast)."""
        self._comm.broadcast(tensor, src, stream=stream)

    def close(self) -> None:
        """Close the communicator."""
        self._comm.close()


def stateless_init_process_group(
    master_address: str,
    master_port: int,
    rank: int,
    world_size: int,
    device: Any,  # noqa: ANN401
) -> Group:
    """Create a group that is independent of torch's process groups.

    Args:
        master_address: the host of rank 0.
        master_port: the port of rank 0.
        rank: of this process.
        world_size: the number of ranks.
        device: a torch.device, the index of a GPU, or "cpu".

    Returns:
        The group.

    Raises:
        NcclError: not all ranks have joined.
    """
    import torch
    from torch._C._distributed_c10d import TCPStore

    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    limit = timedelta(seconds=_SECONDS)
    store = TCPStore(master_address, master_port, world_size, rank == 0, timeout=limit)
    provider = "cuda" if gpu.type == "cuda" else "host"
    comm = nccl.Communicator.from_store(
        store,
        rank,
        world_size,
        config=nccl.Config(timeout=_SECONDS, init_timeout=_SECONDS),
        provider=provider,
        device=gpu.index if provider == "cuda" else None,
    )
    return Group(comm)


def install() -> None:
    """Make OpenRLHF create its groups with pynccl.

    Raises:
        ImportError: OpenRLHF is not installed.
    """
    os.environ["PYNCCL_OPENRLHF"] = "1"  # for processes that vLLM starts
    module = importlib.import_module("openrlhf.utils.distributed_util")
    module.stateless_init_process_group = stateless_init_process_group  # type: ignore[attr-defined]
