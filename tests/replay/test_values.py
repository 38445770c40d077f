"""Proves that the buffers of a replay overlap exactly as recorded, and that their values are as
described and exact in every dtype.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynccl.tools.replay.contents import Accesses, Layout
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


_BUFFERS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=12)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


@given(_BUFFERS)
def test_unscaled_distances_are_kept(buffers: list[tuple[int, int]]) -> None:
    layout = Layout([(16 * a, 16 * n, 16 * n, 4) for a, n in buffers], 1.0)
    places = [(layout[16 * a], 16 * n) for a, n in buffers]
    for i, one in enumerate(buffers):
        assert places[i][0] + places[i][1] <= layout.nbytes
        for j, other in enumerate(buffers):
            assert _overlap(places[i], places[j]) == _overlap(one, other)
            if _overlap(one, other):
                assert places[j][0] - places[i][0] == 16 * (other[0] - one[0])


@given(_BUFFERS, st.sampled_from([0.01, 0.1, 0.5, 0.9, 3.0]))
def test_scaled_disjoint_buffers_stay_disjoint(
    buffers: list[tuple[int, int]], scale: float
) -> None:
    scaled = [(16 * a, 16 * n, 4 * max(1, int(4 * n * scale))) for a, n in buffers]
    layout = Layout([(a, n, new, 4) for a, n, new in scaled], scale)
    largest: dict[int, int] = {}
    for a, n, _ in scaled:
        largest[a] = max(largest.get(a, 0), n)
    for a, n, new in scaled:
        assert layout[a] % 4 == 0
        assert layout[a] + new <= layout.nbytes
        for b, _, other in scaled:
            if a + largest[a] <= b:  # even the largest buffer at this address ends before
                assert not _overlap((layout[a], new), (layout[b], other)), (n, a, b)


def test_accesses_that_must_be_ordered() -> None:
    accesses = Accesses([0, 8, 16, 24])
    accesses.add(0, 16, stream=1, step=0, writes=True)
    accesses.add(8, 24, stream=2, step=1, writes=False)
    assert accesses.before(0, 8, writes=False) == {1: 0}
    assert accesses.before(16, 24, writes=False) == {}
    assert accesses.before(16, 24, writes=True) == {2: 1}
    assert accesses.before(0, 24, writes=True) == {1: 0, 2: 1}
