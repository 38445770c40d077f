"""Weights as float8 with scales, quantized one at a time while they are sent.

    gather, metadata = float8(dict(model.named_parameters()))
    sender.send(gather, metadata=metadata)

The layout is that of block-scaled checkpoints, as engines load them: ``weight`` in float8_e4m3fn,
and ``weight_scale_inv`` in float32, by which a block is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pynccl.weights.source import Gather, Spec

if TYPE_CHECKING:
    import torch

__all__ = ["dequantize", "float8", "quantize"]

Block: TypeAlias = "tuple[int, int] | None"

_DTYPE = "float8_e4m3fn"
_BLOCK = (128, 128)
_SUFFIX = "_scale_inv"


def float8(
    tensors: Mapping[str, torch.Tensor],
    *,
    block: Block = _BLOCK,
    chosen: Callable[[str, torch.Tensor], bool] | None = None,
    suffix: str = _SUFFIX,
) -> tuple[Gather, dict[str, Spec]]:
    """Prepare torch tensors for sending: selected ones as float8, each followed by its scales.

    Args:
        tensors: by name.
        block: rows and columns that share a scale; None is one scale per tensor.
        chosen: called with name and tensor, returns whether it is converted to float8. None selects
            two-dimensional floating-point tensors whose name ends in "weight".
        suffix: of the names of the scales.

    Returns:
        The function and the metadata for :meth:`WeightSender.send`.

    Raises:
        ValueError: a tensor has the name of a scale.
    """
    choose = _is_matrix if chosen is None else chosen
    metadata: dict[str, Spec] = {}
    names = {name for name, tensor in tensors.items() if choose(name, tensor)}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if name not in names:
            metadata[name] = Spec(str(tensor.dtype).removeprefix("torch."), shape)
            continue
        if name + suffix in tensors:
            raise ValueError(f"tensors: {name + suffix!r} is the name of the scales of {name!r}")
        metadata[name] = Spec(_DTYPE, shape)
        metadata[name + suffix] = Spec("float32", _grid(shape, block))

    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            if name not in names:
                yield name, tensor.detach()
                continue
            values, scales = quantize(tensor, block)
            yield name, values
            del values
            yield name + suffix, scales

    return gather, metadata


def quantize(tensor: torch.Tensor, block: Block = _BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert a tensor to float8_e4m3fn.

    Args:
        tensor: floating-point; two-dimensional, unless block is None.
        block: rows and columns that share a scale; None is one scale for all.

    Returns:
        The values, with the shape of the tensor, and the float32 scales by which they are
            multiplied to restore it: one per block, or of shape (1,). The largest magnitude of a
            block is mapped to the largest of float8.

    Raises:
        ValueError: the tensor is not two-dimensional.
    """
    import torch

    kind = torch.float8_e4m3fn
    largest = torch.finfo(kind).max
    if block is None:
        scales = _scales(tensor.detach().abs().amax().float().reshape(1), largest)
        return (tensor.detach().float() / scales).to(kind), scales
    blocks = _in_blocks(tensor.detach().float(), block)
    scales = _scales(blocks.abs().amax(dim=(1, 3)), largest)
    values = (blocks / scales[:, None, :, None]).to(kind)
    rows, columns = tensor.shape
    return values.reshape(blocks.shape[0] * block[0], -1)[:rows, :columns].contiguous(), scales


def dequantize(values: torch.Tensor, scales: torch.Tensor, block: Block = _BLOCK) -> torch.Tensor:
    """Restore the float32 tensor that was passed to :func:`quantize`, up to float8 rounding.

    Args:
        values: the float8 values.
        scales: their scales.
        block: see quantize().

    Returns:
        The tensor, in float32.
    """
    if block is None:
        return values.float() * scales
    rows, columns = values.shape
    blocks = _in_blocks(values.float(), block) * scales[:, None, :, None]
    return blocks.reshape(blocks.shape[0] * block[0], -1)[:rows, :columns].contiguous()


def _is_matrix(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.is_floating_point() and name.endswith("weight")


def _grid(shape: tuple[int, ...], block: Block) -> tuple[int, ...]:
    """The shape of the scales."""
    if block is None:
        return (1,)
    if len(shape) != len(block):
        raise ValueError(f"tensor: its shape {shape} does not have {len(block)} dimensions")
    return tuple(-(-size // one) for size, one in zip(shape, block, strict=True))


def _in_blocks(tensor: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Reshape to (rows of blocks, rows, columns of blocks, columns), padded with zeros."""
    import torch

    rows, columns = _grid(tuple(tensor.shape), block)
    right = columns * block[1] - tensor.shape[1]
    below = rows * block[0] - tensor.shape[0]
    if right or below:
        tensor = torch.nn.functional.pad(tensor, (0, right, 0, below))
    return tensor.reshape(rows, block[0], columns, block[1])


def _scales(largest_of: torch.Tensor, largest: float) -> torch.Tensor:
    """The scales; 1 for blocks of zeros."""
    import torch

    return torch.where(largest_of == 0, 1.0, largest_of / largest)
