"""verl's checkpoint engine over pynccl.weights.

The module registers the engine "pynccl" when verl imports it::

    actor_rollout_ref.rollout.checkpoint_engine.backend=pynccl
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=pynccl.weights.adapters.verl

Rank 0 of the actors sends, in parts of update_weights_bucket_megabytes: verl's generators provide
no metadata, so each part is a version of the session, and is loaded as it arrives. The other actors
only take part in producing the tensors. A session stays open while the rollout workers are the
same. Written for verl 0.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from pynccl.weights.keys import key_to_pass
from pynccl.weights.meeting import own_host
from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.sender import WeightSender

__all__ = ["engine_class", "register"]

_BASE = "verl.checkpoint_engine.base"
_Lists = dict[str, list[Any]]
_LAST = "pynccl.last"  # a tensor of one element: whether this is the last part


def engine_class(base: type) -> type:
    """Create the engine as a subclass of verl.checkpoint_engine.base.CheckpointEngine."""

    class PyncclCheckpointEngine(base):  # type: ignore[misc]
        """Sends and receives weights in a session, in parts of bucket_size bytes.

        timeout is the limit of each wait in seconds. Rank 0 of the actors, is_master, listens at
        host; None determines one.
        """

        wire_format = "named_tensors"

        def __init__(
            self,
            bucket_size: int,
            is_master: bool = False,
            timeout: float = 300.0,
            host: str | None = None,
        ) -> None:
            self._bucket_size = bucket_size
            self._is_master = is_master
            self._timeout = timeout
            self._host = host
            self._session: str | None = None  # the open session
            self._receivers = 0  # of the open session
            self._sender: WeightSender | None = None
            self._receiver: WeightReceiver | None = None
            self._reserved: socket.socket | None = None  # the port of the next session

        def prepare(self) -> dict[str, Any]:
            """Return this worker's metadata for build_topology()."""
            address = None
            if self._is_master:
                self._reserved = self._reserved or _reserve(self._host or own_host())
                address = "{}:{}".format(*self._reserved.getsockname())
            return {"session": (self._session, self._receivers), "address": address}

        @classmethod
        def build_topology(
            cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
        ) -> tuple[_Lists, _Lists]:
            """Return the arguments of init_process_group(): the open session, or a new one.

            The open session is used if all workers are in it, and no others are.
            """
            members = [metadata[0], *metadata[actor_wg_world_size:]]
            sessions = {one["session"] for one in members}
            session, receivers = sessions.pop() if len(sessions) == 1 else (None, 0)
            if receivers != rollout_world_size:
                session = None
            key = None  # for a session that is already open
            if session is None:
                key = key_to_pass()
                session = f"{metadata[0]['address']}/{uuid.uuid4().hex}"

            def arguments(ranks: list[int]) -> _Lists:
                return {
                    "rank": ranks,
                    "session": [session] * len(ranks),
                    "receivers": [rollout_world_size] * len(ranks),
                    "key": [key] * len(ranks),
                }

            actors = [0] + [-1] * (actor_wg_world_size - 1)
            return arguments(actors), arguments(list(range(1, rollout_world_size + 1)))

        def init_process_group(
            self, rank: int, session: str, receivers: int, key: str | None = None
        ) -> None:
            """Open the session, unless it is already open."""
            if rank < 0 or session == self._session:
                return
            self._leave()
            address = session.partition("/")[0]
            if rank == 0:
                self._sender = WeightSender(
                    address, receivers=receivers, timeout=self._timeout, key=key
                )
                self._release_port()
            else:
                self._receiver = WeightReceiver(
                    address, library="torch", timeout=self._timeout, key=key
                )
            self._session, self._receivers = session, receivers

        def finalize(self) -> None:
            """Do nothing: the session stays open."""

        async def send_weights(
            self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None
        ) -> None:
            """Send the tensors of a generator; an actor without a session only exhausts it."""
            if self._sender is None:
                for _ in weights:
                    pass
                return
            with self._closed_by_errors():
                await _send_parts(self._sender, weights, self._bucket_size)

        async def receive_weights(
            self, global_steps: int | None = None
        ) -> AsyncIterator[tuple[str, Any]]:
            """Yield the names and tensors of the model."""
            if self._receiver is None:
                raise RuntimeError("init_process_group was not called")
            with self._closed_by_errors():
                async for item in _receive_parts(self._receiver):
                    yield item

        @contextlib.contextmanager
        def _closed_by_errors(self) -> Iterator[None]:
            """Leave the session if it fails; build_topology() then opens a new one for all."""
            try:
                yield
            except BaseException:
                self.close()
                raise

        def close(self) -> None:
            """Leave the session. Closing twice is allowed."""
            self._leave()
            self._release_port()

        def _leave(self) -> None:
            for member in (self._sender, self._receiver):
                if member is not None:
                    member.close()
            self._sender = self._receiver = self._session = None

        def _release_port(self) -> None:
            if self._reserved is not None:
                self._reserved.close()
            self._reserved = None

    return PyncclCheckpointEngine


def register(name: str = "pynccl") -> None:
    """Register the engine with verl.

    Args:
        name: name of the engine in the configuration.

    Raises:
        ImportError: verl is not installed, or does not support checkpoint engines.
    """
    base = importlib.import_module(_BASE)
    base.CheckpointEngineRegistry.register(name)(engine_class(base.CheckpointEngine))


async def _send_parts(
    sender: WeightSender, weights: Iterable[tuple[str, Any]], nbytes: int
) -> None:
    """Send torch tensors of one device in parts; a thread sends one while the next is produced.

    A part has at most the given size, unless one tensor is larger. Its tensors are referenced until
    they are sent.

    Raises:
        ValueError: a name occurs twice in a part.
        WeightsError: see :meth:`WeightSender.send`.
    """
    import torch

    part: dict[str, torch.Tensor] = {}
    filled = 0
    under_way: asyncio.Task[object] | None = None

    async def begin(is_last: bool) -> None:
        nonlocal under_way, part, filled
        if under_way is not None:
            await under_way
        device = next((tensor.device for tensor in part.values()), torch.device("cpu"))
        part[_LAST] = torch.tensor([is_last], dtype=torch.uint8, device=device)
        if device.type == "cuda":  # the thread has another current stream
            torch.cuda.current_stream(device).synchronize()
        under_way = asyncio.ensure_future(asyncio.to_thread(sender.send, part))
        part, filled = {}, 0

    try:
        for name, tensor in weights:
            if part and filled + tensor.nbytes > nbytes:
                await begin(is_last=False)
            if name in part:
                raise ValueError(f"weights: two tensors are named {name!r}")
            part[name] = tensor.detach()
            filled += tensor.nbytes
        await begin(is_last=True)
    finally:
        if under_way is not None:
            await under_way


async def _receive_parts(receiver: WeightReceiver) -> AsyncIterator[tuple[str, Any]]:
    """Yield the names and tensors that _send_parts() sends to a receiver without ``into``.

    While they are used, a thread receives the next part. A tensor is overwritten after the next
    part.

    Raises:
        WeightsError: see :meth:`WeightReceiver.receive`.
    """
    under_way = asyncio.ensure_future(asyncio.to_thread(receiver.receive))
    while True:
        await under_way
        tensors = dict(receiver.tensors)
        is_last = bool(tensors.pop(_LAST).item())
        if not is_last:
            under_way = asyncio.ensure_future(asyncio.to_thread(receiver.receive))
        try:
            for item in tensors.items():
                yield item
        except GeneratorExit:
            if not is_last:
                receiver.close()  # ends the thread
            raise
        if is_last:
            return


def _reserve(host: str) -> socket.socket:
    """Reserve a free port: no connection takes it as its own, and a sender can listen at it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    return sock


if _BASE in sys.modules:  # verl imports this module
    register()
