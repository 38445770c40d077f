"""Ray's collective groups, compiled graphs and tensor transports over pynccl, on GPUs and CPUs.

    import pynccl.compat.ray  # in the driver

    ray.init(runtime_env={"worker_process_setup_hook": "pynccl.compat.ray.register"})

The import registers the backend "pynccl" of ray.util.collective, and the tensor transport "pynccl"
of ray.experimental. The setup hook imports the module in the workers. Compiled graphs of GPU actors
use pynccl after ``register_accelerator_context("cuda", pynccl.compat.ray.GraphCommunicator)`` in
the driver. On CPUs, Ray's channels send tensors between actors through shared memory, and only
collectives use pynccl: ``allreduce.bind(..., transport=CPUGraphCommunicator(2, actors))``.

A process uses CPUs if Ray has assigned it no GPU, unless PYNCCL_PROVIDER is set. CPU groups are
limited to one node. Operations have the time limit of PYNCCL_TIMEOUT, and groups are created within
180 seconds or that limit, if it is shorter. Written for Ray 2.60.
"""

# ruff: noqa: ANN401 - Ray does not type tensors, options and actors

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayChannelError
from ray.experimental import internal_kv
from ray.experimental.channel.communicator import Communicator
from ray.experimental.channel.cpu_communicator import CPUCommunicator
from ray.experimental.rdt import register_tensor_transport
from ray.experimental.rdt.collective_tensor_transport import CollectiveTensorTransport
from ray.experimental.util.types import ReduceOp
from ray.util.collective import collective, types
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from pynccl import _C, nccl

__all__ = ["CPUGraphCommunicator", "GraphCommunicator", "Group", "TensorTransport", "register"]

_SECONDS = 180.0
_POLL = 0.02


def _answer(key: str, nranks: int, seconds: float, unique_id: bytes) -> None:
    """Answer the requests of all other ranks, until they have read the answers."""
    until = time.monotonic() + seconds
    answered: dict[int, bytes] = {}
    missing = list(range(1, nranks))
    while missing:
        for rank in tuple(missing):
            number = internal_kv._internal_kv_get(f"{key}/{rank}")
            if number is None and rank in answered:
                missing.remove(rank)
            elif number is not None and number != answered.get(rank):
                internal_kv._internal_kv_put(f"{key}/{number.decode()}", unique_id)
                answered[rank] = number
        if time.monotonic() > until:
            text = f"{key}: ranks {missing} did not join within {seconds:g} s"
            raise nccl.NcclTimeoutError(text, rank=0, missing=(missing, "store"))
        time.sleep(_POLL)


def _ask(key: str, rank: int, seconds: float) -> bytes:
    """Ask rank 0 for the unique id, with a number that tells the answer from that of another group.

    The request of a process that died is answered as well, until the next one replaces it.
    """
    until = time.monotonic() + seconds
    request, number = f"{key}/{rank}", uuid.uuid4().hex
    internal_kv._internal_kv_put(request, number)
    try:
        while (answer := internal_kv._internal_kv_get(f"{key}/{number}")) is None:
            if time.monotonic() > until:
                text = f"{key}: rank 0 did not join within {seconds:g} s"
                raise nccl.NcclTimeoutError(text, rank=rank, missing=([0], "store"))
            time.sleep(_POLL)
        return bytes(answer)
    finally:
        internal_kv._internal_kv_del(request)
        internal_kv._internal_kv_del(f"{key}/{number}")


def _limit() -> float:
    """Return the time limit for creating a communicator, in seconds."""
    return min(_C.default_timeout(), _SECONDS)


def _create(key: str, rank: int, nranks: int) -> nccl.Communicator:
    provider = os.environ.get("PYNCCL_PROVIDER") or ("cuda" if ray.get_gpu_ids() else "host")
    seconds = _limit()
    if rank == 0:
        unique_id = nccl.get_unique_id(provider)
        _answer(f"pynccl/{key}", nranks, seconds, bytes(unique_id))
    else:
        unique_id = nccl.UniqueId(_ask(f"pynccl/{key}", rank, seconds))
    config = nccl.Config(init_timeout=seconds)
    return nccl.Communicator(nranks, unique_id, rank, config=config, provider=provider)


def _wait(comm: nccl.Communicator, stream: Any) -> None:
    """Wait for a stream and raise the failure of its operations, which torch does not see."""
    event = nccl.Event(comm.provider)
    event.record(stream)
    event.synchronize()


def _one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"tensors: got {len(tensors)}; pynccl supports one GPU per process")
    return tensors[0]


class Group(BaseGroup):
    """A group of ray.util.collective; see ray.util.collective's functions.

    Args:
        world_size: number of ranks.
        rank: rank of this process.
        group_name: name of the group, the same on all ranks.

    Raises:
        NcclTimeoutError: not all ranks joined in time.
        NcclError: NCCL failed.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        job = ray.get_runtime_context().get_job_id()
        self._comm = _create(f"{job}/{group_name}", rank, world_size)

    @classmethod
    def backend(cls) -> str:
        return "PYNCCL"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._comm.close()

    def abort(self) -> None:
        """End operations in progress. Later ones raise ValueError."""
        self._comm.abort()

    def allreduce(self, tensor: Any, allreduce_options: Any = types.AllReduceOptions) -> None:
        self._comm.all_reduce(_one(tensor), allreduce_options.reduceOp.name.lower())

    def barrier(self, barrier_options: object = None) -> None:
        if self._comm.provider == "host":
            return self._comm.barrier()
        stream = torch.cuda.current_stream()
        self._comm.barrier(stream=stream)
        _wait(self._comm, stream)

    def reduce(self, tensor: Any, reduce_options: Any = types.ReduceOptions) -> None:
        op = reduce_options.reduceOp.name.lower()
        self._comm.reduce(_one(tensor), reduce_options.root_rank, op)

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: object = None) -> None:
        """Broadcasts, because the parts are separate tensors."""
        own, parts = _one(tensor), _one(tensor_list)
        with nccl.group():
            for root, part in enumerate(parts):
                self._comm.broadcast(own if root == self.rank else part, root, out=part)

    def broadcast(self, tensor: Any, broadcast_options: Any = types.BroadcastOptions) -> None:
        self._comm.broadcast(_one(tensor), broadcast_options.root_rank)

    def reducescatter(
        self, tensor: Any, tensor_list: Any, reducescatter_options: Any = types.ReduceScatterOptions
    ) -> None:
        op = reducescatter_options.reduceOp.name.lower()
        out = _one(tensor)
        with nccl.group():
            for root, part in enumerate(_one(tensor_list)):
                self._comm.reduce(part, root, op, out=out if root == self.rank else None)

    def send(self, tensor: Any, send_options: Any) -> None:
        self._comm.send(_one(tensor), send_options.dst_rank)

    def recv(self, tensor: Any, recv_options: Any) -> None:
        self._comm.recv(_one(tensor), recv_options.src_rank)


class TensorTransport(CollectiveTensorTransport):
    """Ray's direct transport of tensors between the actors of a Group."""

    def tensor_transport_backend(self) -> str:
        return "PYNCCL"

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """End the operations of the group; it must be destroyed and created again."""
        name = communicator_metadata.communicator_name
        if collective.is_group_initialized(name):
            collective.get_group_handle(name).abort()


class _Collectives:
    """The collectives of a compiled graph."""

    _comm: nccl.Communicator | None = None
    _stream: Any = None
    _closed = False

    def _run(self, name: str, *args: Any, wait: bool = True, **options: Any) -> None:
        """Call a method of the communicator, and wait for its result."""
        if self._closed or self._comm is None:
            raise RayChannelError("the communicator was destroyed")
        options.setdefault("stream", self._stream)
        try:
            getattr(self._comm, name)(*args, **options)
            if wait and options["stream"] is not None:
                _wait(self._comm, options["stream"])
        except (nccl.NcclError, ValueError) as error:
            raise RayChannelError(str(error)) from error
        if self._closed:
            raise RayChannelError("the communicator was destroyed during the operation")

    def allgather(self, send_buf: torch.Tensor, recv_buf: torch.Tensor) -> None:
        self._run("all_gather", send_buf, out=recv_buf)

    def allreduce(
        self, send_buf: torch.Tensor, recv_buf: torch.Tensor, op: ReduceOp = ReduceOp.SUM
    ) -> None:
        self._run("all_reduce", send_buf, op.name.lower(), out=recv_buf)

    def reducescatter(
        self, send_buf: torch.Tensor, recv_buf: torch.Tensor, op: ReduceOp = ReduceOp.SUM
    ) -> None:
        self._run("reduce_scatter", send_buf, op.name.lower(), out=recv_buf)

    def destroy(self) -> None:
        self._closed = True
        if self._comm is not None:
            self._comm.abort()


class CPUGraphCommunicator(_Collectives, CPUCommunicator):
    """The communicator of a compiled graph of CPU actors, created by the driver.

    Args:
        world_size: number of actors.
        actor_handles: the actors, in rank order.
    """

    def __init__(self, world_size: int, actor_handles: Sequence[Any]) -> None:
        super().__init__(world_size, actor_handles)
        self._key = uuid.uuid4().hex

    def initialize(self, rank: int) -> None:
        super().initialize(rank)
        self._comm = _create(self._key, rank, self.get_world_size())


class GraphCommunicator(_Collectives, Communicator):
    """The communicator of a compiled graph of GPU actors; Ray calls the constructor.

    Args:
        world_size: number of actors.
        comm_id: the result of generate_communicator_id().
        rank: rank of this actor; None in the driver.
        actor_handles: the actors, in rank order.
        cuda_stream: the stream of operations.
        use_communication_streams: whether to send and receive on streams of their own.
    """

    def __init__(
        self,
        world_size: int,
        comm_id: bytes,
        rank: int | None,
        actor_handles: Sequence[Any],
        cuda_stream: Any,
        use_communication_streams: bool = False,
    ) -> None:
        self._world_size, self._rank, self._actors = world_size, rank, actor_handles
        self._stream = self._send_stream = self._recv_stream = cuda_stream
        self._overlaps = use_communication_streams
        if use_communication_streams:
            self._send_stream, self._recv_stream = torch.cuda.Stream(), torch.cuda.Stream()
        if rank is not None:
            config = nccl.Config(init_timeout=_limit())
            self._comm = nccl.Communicator(world_size, nccl.UniqueId(comm_id), rank, config=config)

    @classmethod
    def generate_communicator_id(cls) -> bytes:
        return bytes(nccl.get_unique_id())

    def initialize(self, rank: int) -> None:
        pass

    def get_actor_handles(self) -> Sequence[Any]:
        return self._actors

    def get_rank(self, actor: Any) -> int:
        return [one._ray_actor_id for one in self._actors].index(actor._ray_actor_id)

    def get_self_rank(self) -> int | None:
        return self._rank

    def get_world_size(self) -> int:
        return self._world_size

    def send(self, value: torch.Tensor, peer_rank: int) -> None:
        if self._overlaps:
            self._send_stream.synchronize()  # else the host runs ahead of the GPU
        self._run("send", value, peer_rank, stream=self._send_stream, wait=False)

    def recv(
        self,
        shape: tuple[int],
        dtype: torch.dtype,
        peer_rank: int,
        allocator: Callable[[tuple[int], torch.dtype], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        assert allocator is not None
        value = allocator(shape, dtype)
        if self._overlaps:
            self._recv_stream.synchronize()
        self._run("recv", value, peer_rank, stream=self._recv_stream, wait=not self._overlaps)
        return value

    @property
    def send_stream(self) -> torch.cuda.StreamContext:
        return torch.cuda.StreamContext(self._send_stream)

    @property
    def recv_stream(self) -> torch.cuda.StreamContext:
        return torch.cuda.StreamContext(self._recv_stream)

    def get_transport_name(self) -> str:
        return "accelerator"


@functools.cache
def register() -> None:
    """Register the backend and the tensor transport in this process; the import does so."""
    register_collective_backend("pynccl", Group)
    register_tensor_transport("pynccl", ["cuda", "cpu"], TensorTransport, torch.Tensor)


register()
