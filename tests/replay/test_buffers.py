"""Proves that the buffers of a replay overlap as recorded, and which uses must be ordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pynccl.tools.replay.buffers import Accesses, Layout

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
