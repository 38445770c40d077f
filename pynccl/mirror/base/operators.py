"""Reduction operators: torch's, pynccl.nccl's and their names, and the NCCL operator for each.

``ReduceOp`` is torch's own class, so the same values work with torch.distributed and pynccl.
``ReduceOp.MAX``, ``nccl.MAX`` and ``"max"`` are equivalent.
"""

from __future__ import annotations

import sys
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

# Creates the operator that multiplies by a factor, for a dtype.
PreMulSum: TypeAlias = Callable[[Any, torch.dtype], RedOp]

# The types that the functions accept as an operator.
Operator: TypeAlias = ReduceOp | ReduceOp.RedOpType | RedOp | str

_SUM = ReduceOp.SUM
# torch's operators, with the NCCL operator and the names of each; the first name is canonical.
_TABLE: list[tuple[Any, RedOp, tuple[str, ...]]] = [
    (ReduceOp.SUM, RedOp.SUM, ("sum",)),
    (ReduceOp.AVG, RedOp.AVG, ("avg",)),
    (ReduceOp.MAX, RedOp.MAX, ("max",)),
    (ReduceOp.MIN, RedOp.MIN, ("min",)),
    (ReduceOp.PRODUCT, RedOp.PROD, ("prod", "product")),
]
# In the order in which the fast path compares them: torch's, then NCCL's, then the names.
OPERATORS: dict[Any, RedOp] = {
    **{torch_op: op for torch_op, op, _ in _TABLE},
    **{op: op for _, op, _ in _TABLE},
    **{sys.intern(name): op for _, op, names in _TABLE for name in names},
}
_TORCH_OPERATORS: dict[RedOp, Any] = {op: torch_op for torch_op, op, _ in _TABLE}
NAMES: dict[RedOp, str] = {op: names[0] for _, op, names in _TABLE}


def torch_operator(op: Any) -> Any:
    """Return torch's bare operator for one of the five in any form, or any other op unchanged."""
    kind = _state(op)[0] if type(op) is ReduceOp else op
    if isinstance(kind, (str, RedOp, ReduceOp.RedOpType)) and kind in OPERATORS:
        return _TORCH_OPERATORS[OPERATORS[kind]]
    return op


def name_of(op: Any) -> str:
    """Return the name of an operator: "sum", "avg", "max", "min" or "prod".

    Raises:
        TypeError, ValueError: as for :func:`resolve`; an operator with a factor has no name.
    """
    kind = _kind(op)
    found = OPERATORS.get(kind)
    if found is None:
        raise _error(op, kind)
    return NAMES[found]


def resolve(op: Any, tensor: torch.Tensor, pre_mul_sum: PreMulSum) -> RedOp:
    """Return the NCCL operator for a reduction.

    Args:
        op: a ReduceOp, a RedOp or a str.
        tensor: one of the tensors, which determines the dtype.
        pre_mul_sum: creates the operator if op is a ReduceOp with a factor.

    Raises:
        TypeError: op has another type, or is AVG on booleans.
        ValueError: NCCL has no such operator.
    """
    if op is _SUM and tensor.dtype is not torch.bool:
        return RedOp.SUM
    kind = _kind(op)
    found = OPERATORS.get(kind)
    if found is None:
        if isinstance(op, RedOp):
            return op  # has a factor; its communicator checks the dtype
        if kind == ReduceOp.PREMUL_SUM:
            return _pre_mul_sum(op, tensor, pre_mul_sum)
        raise _error(op, kind)
    if tensor.dtype is torch.bool:
        if found is RedOp.AVG:
            raise TypeError("op: Cannot use ReduceOp.AVG with Boolean inputs")
        if found is RedOp.SUM:
            return RedOp.MAX  # logical or, as in torch's NCCL backend
    return found


def _kind(op: Any) -> Any:
    """Return the key of an operator in the table.

    Raises:
        TypeError: op is not an operator.
    """
    if type(op) is ReduceOp:
        return _state(op)[0]
    # isinstance(op, ReduceOp) is also true for torch's bare values.
    if not isinstance(op, (ReduceOp.RedOpType, RedOp, str)):
        raise TypeError(f"op: expected a ReduceOp, a RedOp or a str, got {op!r}")
    return op


def _error(op: Any, kind: Any) -> ValueError:
    """Return the error for an operator that is not in the table."""
    if isinstance(op, str):
        names = ", ".join(map(repr, NAMES.values()))
        return ValueError(f"op: {op!r} is not one of {names}")
    if isinstance(op, RedOp) or kind == ReduceOp.PREMUL_SUM:
        return ValueError(f"op: {op!r} has a factor, which has no name")
    return ValueError(f"op: Cannot use ReduceOp.{kind.name} with NCCL: it has no bitwise operators")


def _state(op: ReduceOp) -> tuple[Any, Any]:
    """Return the kind of an operator, and its factor if it has one."""
    return cast("tuple[Any, Any]", op.__getstate__())


def _pre_mul_sum(op: Any, tensor: torch.Tensor, pre_mul_sum: PreMulSum) -> RedOp:
    if type(op) is not ReduceOp:
        raise ValueError(
            "op: ReduceOp.PREMUL_SUM needs a factor: create it with _make_nccl_premul_sum(factor)"
        )
    return pre_mul_sum(_state(op)[1], tensor.dtype)
