"""Models for the tests of pynccl.weights."""

from __future__ import annotations

import torch

__all__ = ["blank", "equal", "make"]

SMALL = {f"layer.{i}.bias": ((7 + i,), torch.float32) for i in range(40)}
MIXED = {
    "embedding": ((300, 129), torch.bfloat16),
    "scalar": ((), torch.float32),
    "nothing": ((0, 4), torch.float32),
    "counter": ((3,), torch.int64),
    "mask": ((5, 5), torch.bool),
    "short": ((9,), torch.int16),
    "quantised": ((64, 33), torch.float8_e4m3fn),
    "large": ((700, 513), torch.float32),
    **SMALL,
}


def make(version: int, spec: dict[str, tuple[tuple[int, ...], torch.dtype]] | None = None) -> dict:
    """Tensors of random bits, seeded by the version."""
    generator = torch.Generator().manual_seed(version)
    tensors = {}
    for name, (shape, dtype) in (MIXED if spec is None else spec).items():
        size = torch.empty(shape, dtype=dtype).nbytes
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        if dtype == torch.bool:
            data &= 1
        tensors[name] = data.view(dtype).view(shape) if shape else data.view(dtype)[0]
    return tensors


def blank(tensors: dict) -> dict:
    """Zeros of the same shapes and dtypes."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def equal(a: dict, b: dict) -> bool:
    """Whether all bits are equal."""
    return list(a) == list(b) and all(same(a[name], b[name]) for name in a)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bits of two tensors are equal."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8),
            b.contiguous().reshape(-1).view(torch.uint8),
        )
    )
