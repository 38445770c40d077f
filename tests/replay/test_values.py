"""Proves that the values of a replay are as described, and exact in every dtype."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pynccl.tools.replay.data import Sequences
from pynccl.tools.replay.program import Source, demand
from pynccl.tools.trace.shape import ITEMSIZES
from tests.support import dtypes, reference

_NAMES = {"float8_e4m3": "float8_e4m3fn"}
_OPERATORS = ("sum", "prod", "min", "max", "avg")


def _array(source: Source, dtype: str, count: int) -> np.ndarray:
    codes = np.ascontiguousarray(Sequences().codes(source, dtype, count))
    return codes.view(dtypes.numpy_dtype(_NAMES.get(dtype, dtype)))


@pytest.mark.parametrize("dtype", ITEMSIZES)
def test_sequences(dtype: str) -> None:
    source = Source("plain", 7, 3)
    assert _array(source, dtype, 10).astype(float).tolist() == [3, 4, 5, 6, 0, 1, 2, 3, 4, 5]
    assert _array(source.at(100), dtype, 2).astype(float).tolist() == [5, 6]
    power = _array(source._replace(mode="power"), dtype, 4)
    assert power.astype(float).tolist() == [2, 1, 2, 1]
    if not dtype.startswith("uint"):
        sign = _array(source._replace(mode="sign"), dtype, 4)
        assert sign.astype(float).tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("nranks", [2, 7, 8])
@pytest.mark.parametrize("op", _OPERATORS)
@pytest.mark.parametrize("dtype", ITEMSIZES)
def test_reductions_agree_with_the_definition(dtype: str, op: str, nranks: int) -> None:
    source = demand("all_reduce", op, dtype, nranks)
    if source is None:  # no exact values exist
        assert op == "avg" or ITEMSIZES[dtype] == 1
        return
    sources = [source.at(3 * rank) for rank in range(nranks)]
    inputs = [_array(one, dtype, 64) for one in sources]
    expected = reference.reduce(inputs, op.upper())

    operation: Any = SimpleNamespace(op=op, dtype=dtype)
    got = Sequences().reduced(operation, sources, 64)
    assert len(set(inputs[0].tobytes())) > 1
    if op == "avg" and nranks & (nranks - 1) and dtype.startswith("float"):
        assert np.allclose(got.astype(float), expected.astype(float), rtol=2e-3)
    else:
        assert np.ascontiguousarray(got).tobytes() == expected.tobytes()
    # In any order.
    if dtype in dtypes.FLOATS and op in ("sum", "prod"):
        reference.check_bits(reference.reduce(inputs[::-1], op.upper()), expected)
