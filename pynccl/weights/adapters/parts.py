"""Transfer of weights with unknown metadata: each part of a model is a version of a session.

A version is committed as a whole, a model is not: the reader loads each part as it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.sender import WeightSender

__all__ = ["receive_parts", "send_parts"]

_LAST = "pynccl.last"  # a tensor of one element: whether this is the last part


async def send_parts(sender: WeightSender, weights: Iterable[tuple[str, Any]], nbytes: int) -> None:
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
                raise ValueError(f"weights: there are two tensors {name!r}")
            part[name] = tensor.detach()
            filled += tensor.nbytes
        await begin(is_last=True)
    finally:
        if under_way is not None:
            await under_way


async def receive_parts(receiver: WeightReceiver) -> AsyncIterator[tuple[str, Any]]:
    """Yield the names and tensors that send_parts() sends to a receiver without ``into``.

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
