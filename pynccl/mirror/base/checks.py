"""Checks of tensors and lists of tensors, before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from pynccl._internal.arguments import wrong_type
from pynccl.mirror.base.errors import MismatchError

__all__ = [
    "Arguments",
    "check_blocks",
    "check_length",
    "check_same_dtype",
    "check_same_size",
    "check_tensor",
    "check_tensor_list",
    "checked_ints",
    "contiguous",
    "in_memory_order",
    "real",
    "reals",
]

# The tensors and lists of tensors of a call, by the names of its parameters.
Arguments: TypeAlias = Mapping[str, "torch.Tensor | Sequence[torch.Tensor]"]


def checked_ints(value: Any, name: str) -> list[int]:
    """Return the elements of a list of integers.

    Raises:
        TypeError: it is another object.
    """
    try:
        return list(map(operator.index, value))
    except TypeError:
        raise wrong_type(name, "a list of integers", value) from None


def check_tensor(value: Any, name: str) -> None:
    """Check that an object is a dense tensor.

    Raises:
        TypeError: it is not a tensor; with torch's text.
        ValueError: it is sparse.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor but got "
            f"{type(value)} instead."
        )
    if value.layout is not torch.strided:
        raise ValueError(f"{name}: expected a dense tensor, got one of {value.layout} layout")


def check_tensor_list(value: Any, name: str) -> None:
    """Check that an object is a list of tensors.

    Raises:
        TypeError: with torch's text.
    """
    if not isinstance(value, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor] "
            f"but got {type(value)} instead."
        )
    if not all(isinstance(tensor, torch.Tensor) for tensor in value):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor] "
            f"but got {type(value)} with elements of type {[type(tensor) for tensor in value]}."
        )


def check_same_dtype(arguments: Arguments) -> None:
    """Check that all dtypes match; a complex dtype matches the dtype of its parts.

    Raises:
        ValueError: they differ.
    """
    first = None
    for name, value in arguments.items():
        for tensor in (value,) if isinstance(value, torch.Tensor) else value:
            dtype = tensor.dtype.to_real() if tensor.dtype.is_complex else tensor.dtype
            if first is None:
                first = dtype
            elif dtype != first:
                raise ValueError(
                    f"{name}: Invalid usage of tensors with different dtypes: found "
                    f"{tensor.dtype}, {next(iter(arguments))} is {first}"
                )


def check_length(tensors: Sequence[Any], size: int, name: str) -> None:
    """Check that a list contains one tensor per rank.

    Raises:
        MismatchError: it contains more or fewer.
    """
    if len(tensors) != size:
        raise MismatchError(
            f"{name}: has {len(tensors)} tensors, must have one for each of the {size} ranks"
        )


def check_same_size(tensor: torch.Tensor, like: torch.Tensor, name: str, like_name: str) -> None:
    """Check that a tensor has as many elements as another one.

    Raises:
        MismatchError: it has more or fewer.
    """
    if tensor.numel() != like.numel():
        raise MismatchError(
            f"{name}: has {tensor.numel()} elements, must have {like.numel()}, as many as "
            f"{like_name}: all tensors must be same size"
        )


def check_blocks(
    all_blocks: torch.Tensor, one: torch.Tensor, ranks: int, name: str, one_name: str
) -> None:
    """Check that a tensor has as many elements as another one for each rank.

    Raises:
        MismatchError: it has more or fewer.
    """
    if all_blocks.numel() != ranks * one.numel():
        raise MismatchError(
            f"{name}: has {all_blocks.numel()} elements, must have {one.numel()} for each of the "
            f"{ranks} ranks, as many as {one_name}"
        )


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; a channels-last one as a contiguous view whose last dimension is C."""
    if tensor.layout != torch.strided or tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return tensor
    last = tensor.movedim(1, -1)
    return last if last.is_contiguous() else tensor


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; a complex one as pairs of reals."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def reals(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors; complex ones as pairs of reals."""
    return [real(tensor) for tensor in tensors]


def contiguous(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the tensor if it is contiguous.

    Raises:
        MismatchError: it is not.
    """
    if not tensor.is_contiguous():
        raise MismatchError(
            f"{name}: Tensors must be contiguous; this one has shape {tuple(tensor.shape)} and "
            f"strides {tensor.stride()}"
        )
    return tensor
