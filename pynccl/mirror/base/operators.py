"""torch's reduction operators, and NCCL's for each.

``ReduceOp`` is torch's own class: the same values serve torch.distributed and pynccl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import ReduceOp, reduce_op
from torch.distributed.distributed_c10d import supports_complex

from pynccl.nccl import RedOp

__all__ = [
    "ReduceOp",
    "_make_nccl_premul_sum",
    "reduce_op",
    "supports_complex",
]

# Makes the operator of a factor, for a dtype.
PreMulSum: TypeAlias = Callable[[Any, torch.dtype], RedOp]

_SUM = ReduceOp.SUM
OPERATORS: dict[Any, RedOp] = {
    ReduceOp.SUM: RedOp.SUM,
    ReduceOp.AVG: RedOp.AVG,
    ReduceOp.PRODUCT: RedOp.PROD,
    ReduceOp.MIN: RedOp.MIN,
    ReduceOp.MAX: RedOp.MAX,
}


def resolve(op: Any, tensor: torch.Tensor, pre_mul_sum: PreMulSum) -> RedOp:
    """The NCCL operator for a reduction.

    Args:
        op: a ReduceOp.
        tensor: one of the tensors, for its dtype.
        pre_mul_sum: makes the operator where op has a factor.

    Raises:
        TypeError: op is not a ReduceOp, or is AVG on booleans.
        ValueError: NCCL has no such operator.
    """
    if op is _SUM and tensor.dtype is not torch.bool:
        return RedOp.SUM
    # isinstance() is true for the bare values of ReduceOp too.
    kind = _state(op)[0] if type(op) is ReduceOp else op
    if kind == ReduceOp.PREMUL_SUM:
        return _pre_mul_sum(op, tensor, pre_mul_sum)
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


def _pre_mul_sum(op: Any, tensor: torch.Tensor, pre_mul_sum: PreMulSum) -> RedOp:
    if type(op) is not ReduceOp:
        raise ValueError(
            "op: ReduceOp.PREMUL_SUM needs a factor: make it with _make_nccl_premul_sum(factor)"
        )
    return pre_mul_sum(_state(op)[1], tensor.dtype)
