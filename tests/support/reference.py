"""The expected results of reductions, computed with NumPy.

``reduce`` is hostnccl's definition, bit for bit: elements are combined in rank order,
half-precision floats in float32 and rounded once, and integers wrap. ``check`` compares results. If
the library chooses the order (NCCL on GPUs), it uses bounds that hold for every order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.support import dtypes


def _maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Prefers a number over a NaN, and +0 over -0.
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


def _minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "biu":
        return np.minimum(a, b)
    return -_maximum(-a, -b)


_BOUNDED = 2048  # elements of exact results that are also compared with the bounds

_COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "SUM": np.add,
    "AVG": np.add,
    "PRE_MUL_SUM": np.add,
    "PROD": np.multiply,
    "MAX": _maximum,
    "MIN": _minimum,
}


def kind(op: str) -> str:
    """The operator without the location of its scalar."""
    return op.removesuffix(" by address")


def scalar_of(name: str, rank: int) -> float | int:
    """A rank's scalar for PRE_MUL_SUM, representable in every dtype."""
    return (2, 3, 1, 5)[rank % 4] if name in dtypes.INTEGERS else (0.5, 1.25, 2.0, 0.75)[rank % 4]


def _round(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to nearest even. 8-bit floats saturate, others overflow to infinity."""
    if dtype.itemsize == 1 and dtype.name.startswith("float8"):
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        values = np.clip(values, -largest, largest)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)


def _divide(total: np.ndarray, nranks: int) -> np.ndarray:
    if total.dtype.kind not in "iu":
        return total / total.dtype.type(nranks)
    divisor = total.dtype.type(nranks)
    towards_zero = (total < 0) & (total % divisor != 0)
    return total // divisor + towards_zero.astype(total.dtype)


def reduce(inputs: list[np.ndarray], op: str) -> np.ndarray:
    """Combine the ranks' inputs as hostnccl does."""
    dtype, op = inputs[0].dtype, kind(op)
    scaled = op == "PRE_MUL_SUM"
    if len(inputs) == 1 and not scaled:
        return inputs[0].copy()
    if dtype.kind == "c":  # to NCCL pairs of reals
        return reduce([array.view(f"f{dtype.itemsize // 2}") for array in inputs], op).view(dtype)
    work = np.dtype(np.float32) if dtype.name in dtypes.HALVES else dtype
    with np.errstate(over="ignore", invalid="ignore"):
        total = None
        for rank, array in enumerate(inputs):
            value = array.astype(work)
            if scaled:
                value = value * work.type(scalar_of(dtype.name, rank))
            total = value if total is None else _COMBINE[op](total, value)
        assert total is not None
        if op == "AVG":
            total = _divide(total, len(inputs))
        return total if work == dtype else _round(total, dtype)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def _epsilon(dtype: np.dtype) -> float:
    if dtype.kind == "c":
        dtype = np.dtype(f"f{dtype.itemsize // 2}")
    return float(ml_dtypes.finfo(dtype).eps)


def check_near(got: np.ndarray, inputs: list[np.ndarray], op: str) -> None:
    """Check bounds that hold for every order of rounded operations, with 80-bit floats.

    Raises:
        AssertionError: a value is out of bounds.
    """
    dtype, op = got.dtype, kind(op)
    wide = [_wide(array) for array in inputs]
    if op == "PRE_MUL_SUM":
        wide = [value * scalar_of(dtype.name, rank) for rank, value in enumerate(wide)]
    total = functools.reduce(_COMBINE[op], wide)
    size = np.abs(total) if op in ("PROD", "MAX", "MIN") else sum(np.abs(value) for value in wide)
    if op == "AVG":
        total, size = total / len(inputs), size / len(inputs)
    steps = 0 if op in ("MAX", "MIN") else len(inputs) + 1
    finfo = ml_dtypes.finfo(np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype)
    # Later factors magnify the loss of an intermediate underflow.
    growth = 1.0
    if op == "PROD":
        growth = functools.reduce(np.multiply, (np.maximum(np.abs(value), 1) for value in wide))
    limit = steps * (_epsilon(dtype) * size + float(finfo.smallest_subnormal) * growth)
    finite = np.abs(size) < float(finfo.max) / 2
    bad = finite & ~(np.abs(_wide(got) - total) <= limit)
    if bad.any():
        where = int(np.argmax(bad))
        raise AssertionError(
            f"element {where} of {got.size} is {got.flat[where]}, "
            f"must be {total.flat[where]} within {limit.flat[where]}"
        )


def check_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Check that all bits are equal.

    Raises:
        AssertionError: a bit differs. The text names the element.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise AssertionError(f"{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}")
    if got.tobytes() == expected.tobytes():
        return
    width = got.dtype.itemsize
    left = np.frombuffer(got.tobytes(), np.uint8).reshape(-1, width)
    right = np.frombuffer(expected.tobytes(), np.uint8).reshape(-1, width)
    bad = np.flatnonzero((left != right).any(axis=1))
    where = int(bad[0])
    raise AssertionError(
        f"{bad.size} of {got.size} elements differ, the first at {where}: "
        f"{got.flat[where]} instead of {expected.flat[where]}"
    )


def check(got: np.ndarray, inputs: list[np.ndarray], op: str, *, exact: bool) -> None:
    """Check the result of a reduction.

    exact requires hostnccl's bits, and also checks the first elements against the bounds.

    Raises:
        AssertionError: the result is wrong.
    """
    floats = got.dtype.name in (*dtypes.FLOATS, *dtypes.COMPLEX)
    if exact or not floats:
        check_bits(got, reduce(inputs, op))
        got, inputs = got[:_BOUNDED], [array[:_BOUNDED] for array in inputs]
    if (floats and got.dtype.name not in dtypes.HALVES) or (not exact and floats):
        check_near(got, inputs, op)
