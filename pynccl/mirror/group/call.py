"""Call: an operation of the mirror, as a public function passes it to its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from pynccl import nccl

__all__ = ["Call", "Enqueue"]

# Calls methods of a Communicator on a stream; None is the current stream.
Enqueue: TypeAlias = Callable[[nccl.Communicator, int | None], object]


class Call(NamedTuple):
    """An operation whose arguments were checked.

    Attributes:
        kind: the name of the operation in messages, such as ``"all_reduce"``.
        tensor: its first tensor, whose device selects the communicator.
        enqueue: calls NCCL. It refers to the tensors, which it keeps alive.
        result: the output tensors.
        async_op: whether it runs on the communication stream and returns a Work.
        source: the source, a group rank, of a receive outside a batch.
    """

    kind: str
    tensor: torch.Tensor
    enqueue: Enqueue
    result: list[torch.Tensor]
    async_op: bool = False
    source: int | None = None
