"""The checksum of csrc/nccl/checksum.h in torch operations, for GPU memory.

A chunk of a tensor needs temporary memory of eight times its size, 32 MiB in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

__all__ = ["checksums"]

_WORDS = 512  # of 64 bits each, per block
_CHUNK = 1 << 22  # bytes
_GAMMA = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93
_ALL = (1 << 64) - 1
_LOW = 0xFFFFFFFF


def checksums(tensors: Sequence[Any]) -> list[int]:
    """The checksums of one-dimensional contiguous byte tensors on one device."""
    import torch

    if not tensors:
        return []
    sums = [_blocks(tensor) for tensor in tensors]
    # One copy to the host for all of them.
    values = torch.stack(sums).tolist()
    return [
        _mix((value + tensor.numel() * _GAMMA) & _ALL)
        for value, tensor in zip(values, tensors, strict=True)
    ]


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _ALL
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    value &= _ALL
    return value - (1 << 64) if value >> 63 else value


@lru_cache
def _keys(device: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """The keys of the words, and their upper halves."""
    import torch

    keys = [_mix((i + 1) * _GAMMA & _ALL) for i in range(_WORDS)]
    signed = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)
    return signed, torch.tensor([key >> 32 for key in keys], dtype=torch.int64, device=device)


@lru_cache
def _powers(count: int, device: Any) -> Any:  # noqa: ANN401
    """The powers of the factor, the highest first."""
    import torch

    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * _FACTOR & _ALL)
    return torch.tensor([_signed(p) for p in reversed(powers)], dtype=torch.int64, device=device)


def _blocks(tensor: Any) -> Any:  # noqa: ANN401
    """The polynomial of the blocks, as a scalar tensor."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, tensor.numel(), _CHUNK):
        chunk = tensor[start : start + _CHUNK]
        size = -(-chunk.numel() // (8 * _WORDS)) * 8 * _WORDS
        if size != chunk.numel() or chunk.data_ptr() % 8:
            padded = torch.zeros(size, dtype=torch.uint8, device=chunk.device)
            padded[: chunk.numel()] = chunk
            chunk = padded
        words = chunk.view(torch.int64).view(-1, _WORDS)
        keys, upper = _keys(tensor.device)
        low = (words + keys) & _LOW
        high = (_shifted(words, 32) + upper) & _LOW
        sums = _mixed((low * high + words).sum(1))
        count = sums.numel()
        total = total * _signed(pow(_FACTOR, count, 1 << 64))
        total = total + (sums * _powers(count, tensor.device)).sum()
    return total


def _shifted(words: Any, bits: int) -> Any:  # noqa: ANN401
    """Logical shift to the right."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(words: Any) -> Any:  # noqa: ANN401
    words = (words ^ _shifted(words, 30)) * _signed(0xBF58476D1CE4E5B9)
    words = (words ^ _shifted(words, 27)) * _signed(0x94D049BB133111EB)
    return words ^ _shifted(words, 31)
