"""OpenRLHF's weight updates over pynccl: parameter by parameter, or as whole versions.

    from pynccl.weights.adapters import openrlhf

    # before OpenRLHF creates its actors
    ray.init(runtime_env={"worker_process_setup_hook": openrlhf.install})

install() replaces stateless_init_process_group(), with which OpenRLHF 0.11 creates the group of the
trainer's rank 0 and all workers of its engines. Each parameter is then broadcast by pynccl, and
every wait has a deadline. It must run in each of these processes, before OpenRLHF's trainers are
imported. Ray's hook runs it in all actors, which include vLLM's Ray workers. A process that an
actor starts for vLLM's engine runs it as well, since pynccl is a vLLM plugin
(:func:`pynccl.weights.adapters.vllm.plugin`), if the actor sets PYNCCL_OPENRLHF, as install() does.

:class:`SessionWorker` is a vLLM worker extension that receives whole versions of pynccl.weights.
Written for OpenRLHF 0.11.2.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

from pynccl import nccl
from pynccl.weights.receiver import WeightReceiver

__all__ = ["Group", "SessionWorker", "install", "stateless_init_process_group"]

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


class SessionWorker:
    """A vLLM worker extension (--worker-extension-cls) that receives whole versions.

    Its methods are called by collective_rpc(), just as OpenRLHF calls those of its WorkerWrap. They
    use the attributes of vLLM's worker, which must not have attributes of the same names.

    The model's parameters must have the checkpoint's format. For quantized models, use the engine
    of :mod:`pynccl.weights.adapters.vllm`.
    """

    _pynccl_receiver: WeightReceiver | None = None

    def pynccl_join(self, address: str, timeout: float = _SECONDS, key: str | None = None) -> None:
        """Join the session of a :class:`WeightSender`.

        Args:
            address: "host:port" of the sender.
            timeout: seconds for each wait.
            key: of the session, as for :class:`WeightReceiver`.
        """
        self._pynccl_receiver = WeightReceiver(address, library="torch", timeout=timeout, key=key)

    def pynccl_update(self, timeout: float | None = None) -> int:
        """Receive the next version, verify it, and load it into the model.

        Args:
            timeout: seconds to wait for it to begin; None means no limit.

        Returns:
            The number of the version.

        Raises:
            WeightsError: see :meth:`WeightReceiver.receive`.
        """
        if self._pynccl_receiver is None:
            raise RuntimeError("pynccl_join() was not called")
        report = self._pynccl_receiver.receive(timeout)
        worker: Any = self
        worker.model_runner.model.load_weights(weights=list(self._pynccl_receiver.tensors.items()))
        return report.version

    def pynccl_leave(self) -> None:
        """Leave the session."""
        if self._pynccl_receiver is not None:
            self._pynccl_receiver.close()
        self._pynccl_receiver = None


def install() -> None:
    """Make OpenRLHF create its groups with pynccl.

    Raises:
        ImportError: OpenRLHF is not installed.
    """
    os.environ["PYNCCL_OPENRLHF"] = "1"  # for processes that vLLM starts
    module = importlib.import_module("openrlhf.utils.distributed_util")
    module.stateless_init_process_group = stateless_init_process_group  # type: ignore[attr-defined]
