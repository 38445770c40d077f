"""OperationRecord: one operation of the mirror as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pynccl import _C, nccl
from pynccl.mirror.base.errors import MismatchError

__all__ = ["Call", "OperationRecord"]

# The name of the output argument, if there is more than one tensor.
_OUTPUTS = {
    "all_gather": "tensor_list",
    "all_gather_coalesced": "output_tensor_lists",
    "all_gather_single": "output_tensor",
    "all_reduce_coalesced": "tensors",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "gather": "gather_list",
    "gather_single": "gather_tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "output",
    "scatter": "tensor",
}


class Call(NamedTuple):
    """One NCCL call of an operation.

    Attributes:
        method: the name of a method of :class:`pynccl.nccl.Communicator`.
        tensor: its first argument.
        root_or_peer: the root of a rooted collective, or the peer of a send or receive, as a rank
            of the communicator; None for other methods.
        op: the reduction operator.
        out: the output, if it is not tensor.
    """

    method: str
    tensor: torch.Tensor
    root_or_peer: int | None = None
    op: nccl.RedOp | None = None
    out: torch.Tensor | None = None

    def enqueue(self, comm: nccl.Communicator, stream: int | None) -> None:
        """Call NCCL, or add the call to the open nccl.group()."""
        arguments: list[Any] = [self.tensor]
        if self.root_or_peer is not None:
            arguments.append(self.root_or_peer)
        if self.op is not None:
            arguments.append(self.op)
        options: dict[str, Any] = {"stream": stream}
        if self.out is not None:
            options["out"] = self.out
        getattr(comm, self.method)(*arguments, **options)


class OperationRecord:
    """One operation of the mirror: the NCCL calls to issue, and the data passed to hooks.

    Attributes:
        kind: the name of the operation in messages, such as ``"all_reduce"`` or
            ``"coalesced isend"``.
        tensor: its first tensor, whose device determines the communicator.
        calls: the NCCL calls. Several calls are issued as one NCCL group.
        result: the output tensors.
        async_op: whether it runs on the communication stream and has a Work.
        source: the source, a group rank, of a receive outside a batch, else None.
        comm_stream: the CommStream on which it is issued; set for the hooks only.
    """

    __slots__ = ("async_op", "calls", "comm_stream", "kind", "result", "source", "tensor")

    def __init__(
        self,
        kind: str,
        tensor: torch.Tensor,
        calls: Sequence[Call],
        result: list[torch.Tensor],
        async_op: bool = False,
        source: int | None = None,
    ) -> None:
        self.kind = kind
        self.tensor = tensor
        self.calls = calls
        self.result = result
        self.async_op = async_op
        self.source = source
        self.comm_stream: _C.CommStream | None = None

    def enqueue(self, comm: nccl.Communicator, stream: int | None) -> None:
        """Call NCCL.

        Args:
            comm: the communicator.
            stream: the stream's handle; None is the current stream.

        Raises:
            MismatchError: tensors overlap.
        """
        try:
            if len(self.calls) == 1:
                self.calls[0].enqueue(comm, stream)
                return
            with nccl.group():
                for call in self.calls:
                    call.enqueue(comm, stream)
        except _C.OverlapError as error:
            name = _OUTPUTS.get(self.kind, self.kind)
            raise MismatchError(f"{name}: {str(error).removeprefix('out: ')}") from None

    def __repr__(self) -> str:
        return f"<OperationRecord {self.kind}, {len(self.calls)} calls>"
