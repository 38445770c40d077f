"""From torch's reduction operators to NCCL's.

``ReduceOp`` is torch's own class: values travel freely between torch.distributed and pynccl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import ReduceOp, reduce_op
from torch.distributed.distributed_c10d import supports_complex

from pynccl.nccl import RedOp

if TYPE_CHECKING:
    from pynccl.mirror.channel import Channel

__all__ = [
    "OPERATORS",
    "ReduceOp",
    "_make_nccl_premul_sum",
    "reduce_op",
    "resolve",
    "supports_complex",
]

_SUM = ReduceOp.SUM
OPERATORS: dict[Any, RedOp] = {
    ReduceOp.SUM: RedOp.SUM,
    ReduceOp.AVG: RedOp.AVG,
    ReduceOp.PRODUCT: RedOp.PROD,
    ReduceOp.MIN: RedOp.MIN,
    ReduceOp.MAX: RedOp.MAX,
}


def resolve(op: Any, tensor: torch.Tensor, channel: Channel) -> RedOp:
    """The NCCL operator for a reduction of these tensors.

    Raises:
        TypeError: op is no ReduceOp, or is AVG on booleans.
        ValueError: NCCL has no such operator.
    """
    if op is _SUM and tensor.dtype is not torch.bool:
        return RedOp.SUM
    # isinstance() says yes to a ReduceOp's bare values too.
    kind = _state(op)[0] if type(op) is ReduceOp else op
    if kind == ReduceOp.PREMUL_SUM:
        return _pre_mul_sum(op, tensor, channel)
    found = OPERATORS.get(kind)
    if found is None:
        if not isinstance(kind, ReduceOp.RedOpType):
            raise TypeError(f"op: expected a ReduceOp, got {op!r}")
        raise ValueError(f"Cannot use ReduceOp.{kind.name} with NCCL: it has no bitwise operators")
    if tensor.dtype is torch.bool:
        if found is RedOp.AVG:
            raise TypeError("Cannot use ReduceOp.AVG with Boolean inputs")
        if found is RedOp.SUM:
            return RedOp.MAX  # "or", as torch's NCCL backend has it
    return found


def _state(op: ReduceOp) -> tuple[Any, Any]:
    """The kind of an operator, and its factor if it has one."""
    return cast("tuple[Any, Any]", op.__getstate__())


def _pre_mul_sum(op: Any, tensor: torch.Tensor, channel: Channel) -> RedOp:
    if type(op) is not ReduceOp:
        raise ValueError(
            "op: ReduceOp.PREMUL_SUM needs a factor: make it with _make_nccl_premul_sum(factor)"
        )
    return channel.pre_mul_sum(_state(op)[1], tensor.dtype)
