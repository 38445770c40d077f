"""The dtypes that collectives accept, as NumPy dtypes, and the operators that reduce them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import torch

INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
NCCL = (*INTEGERS, *FLOATS)
ALL = (*NCCL, "bool", *COMPLEX)

_EXTENSIONS = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
}


def numpy_dtype(name: str) -> np.dtype:
    return _EXTENSIONS[name] if name in _EXTENSIONS else np.dtype(name)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, dtype.name)
    return found


def of_torch(dtype: torch.dtype) -> np.dtype:
    return numpy_dtype(str(dtype).removeprefix("torch."))


def operators(name: str) -> tuple[str, ...]:
    """The operators defined on a dtype, including PRE_MUL_SUM by value and by address."""
    if name == "bool":
        return ("PROD", "MAX", "MIN")
    if name in COMPLEX:
        return ("SUM", "AVG")
    return ("SUM", "PROD", "MAX", "MIN", "AVG", "PRE_MUL_SUM", "PRE_MUL_SUM by address")


def sample(name: str, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random elements: integers over their full range, floats of both signs near magnitude 1."""
    dtype = numpy_dtype(name)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in INTEGERS:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    values = rng.standard_normal(shape)
    if name in COMPLEX:
        return (values + 1j * rng.standard_normal(shape)).astype(dtype)
    return values.astype(dtype)
