"""Weights as float8 with scales, quantized one at a time while they are sent.

    gather, metadata = float8(dict(model.named_parameters()))
    sender.send(gather, metadata=metadata)

The layout is that of block-scaled checkpoints, as engines load them: ``weight`` in float8_e4m3fn,
and ``weight_scale_inv`` in float32, by which each block of 128 by 128 elements is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pynccl.weights.source import Gather, Spec

if TYPE_CHECKING:
    import torch

__all__ = ["float8", "quantize"]

_BLOCK = 128  # rows and columns that share a scale
_SUFFIX = "_scale_inv"


def float8(
    tensors: Mapping[str, torch.Tensor],
    *,
    chosen: Callable[[str, torch.Tensor], bool] | None = None,
) -> tuple[Gather, dict[str, Spec]]:
    """Prepare torch tensors for sending: selected ones as float8, each followed by its scales.

    Args:
        tensors: by name.
        chosen: called with name and tensor, returns whether it is converted to float8; the tensor
            must be two-dimensional. None selects two-dimensional floating-point tensors whose name
            ends in "weight".

    Returns:
        The function and the metadata for :meth:`WeightSender.send`.

    Raises:
        ValueError: a selected tensor is not two-dimensional, or a tensor has the name of a scale.
    """
    choose = _is_matrix if chosen is None else chosen
    metadata: dict[str, Spec] = {}
    names = {name for name, tensor in tensors.items() if choose(name, tensor)}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if name not in names:
            metadata[name] = Spec.of(tensor)
            continue
        if name + _SUFFIX in tensors:
            raise ValueError(f"tensors: {name + _SUFFIX!r} is the name of the scales of {name!r}")
        if len(shape) != 2:
            raise ValueError(f"tensors: {name!r} has shape {shape}, expected two dimensions")
        metadata[name] = Spec("float8_e4m3fn", shape)
        metadata[name + _SUFFIX] = Spec("float32", (-(-shape[0] // _BLOCK), -(-shape[1] // _BLOCK)))

    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            if name not in names:
                yield name, tensor.detach()
                continue
            values, scales = quantize(tensor)
            yield name, values
            del values
            yield name + _SUFFIX, scales

    return gather, metadata


def quantize(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert a two-dimensional floating-point tensor to float8_e4m3fn.

    Returns:
        The values, with the shape of the tensor, and the float32 scales of the blocks, by which
            they are multiplied to restore it. The largest magnitude of a block is mapped to the
            largest of float8.
    """
    import torch

    rows, columns = tensor.shape
    padding = (0, -columns % _BLOCK, 0, -rows % _BLOCK)  # right and below, with zeros
    padded = torch.nn.functional.pad(tensor.detach().float(), padding)
    blocks = padded.reshape(padded.shape[0] // _BLOCK, _BLOCK, padded.shape[1] // _BLOCK, _BLOCK)
    largest = blocks.abs().amax(dim=(1, 3))
    scales = torch.where(largest == 0, 1.0, largest / torch.finfo(torch.float8_e4m3fn).max)
    values = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.reshape(padded.shape)[:rows, :columns].contiguous(), scales


def _is_matrix(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.is_floating_point() and name.endswith("weight")
