"""Tensors of any layout arrive bit-equal at full and sharded receivers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pynccl.weights import Shard, WeightReceiver, WeightSender, WeightsError
from tests.support.tier import FULL
from tests.weights.sessions import run, run_numpy

DTYPES = ["float32", "float16", "int64", "uint8", "bool", "int16"]
Array = NDArray[Any]


def cut(draw: st.DrawFn, shape: tuple[int, ...], parts: int) -> list[tuple[list[int], list[int]]]:
    """Cut a tensor unevenly along one dimension; some of the boxes may be empty."""
    axis = draw(st.integers(0, len(shape) - 1))
    inner = draw(st.lists(st.integers(0, shape[axis]), min_size=parts - 1, max_size=parts - 1))
    ends = [0, *sorted(inner), shape[axis]]
    boxes = []
    for a, b in itertools.pairwise(ends):
        start, stop = [0] * len(shape), list(shape)
        start[axis], stop[axis] = a, b
        boxes.append((start, stop))
    return boxes


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    nsenders = draw(st.sampled_from([1, 2, 4]))
    nreceivers = draw(st.integers(1, 3))
    model: dict[str, Array] = {}
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    for i in range(draw(st.integers(1, 6))):
        shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
        dtype = draw(st.sampled_from(DTYPES))
        data = random.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, np.uint8)
        if dtype == "bool":
            data &= 1
        model[f"t{i}"] = data.view(dtype).reshape(shape)
    senders: list[dict[str, Any]] = [{} for _ in range(nsenders)]
    for name, array in model.items():
        how = draw(st.sampled_from(["cut", "one", "all"]))
        if how == "cut":
            for sender, box in zip(senders, cut(draw, array.shape, nsenders), strict=True):
                sender[name] = shard(array, box)
        else:
            owner = draw(st.integers(0, nsenders - 1))
            for rank, sender in enumerate(senders):
                if how == "all" or rank == owner:
                    sender[name] = array
    receivers: list[dict[str, Any] | None] = []
    for _ in range(nreceivers):
        if draw(st.booleans()):
            receivers.append(None)
            continue
        wanted: dict[str, Any] = {}
        for name, array in model.items():
            if draw(st.booleans()):
                box = draw(st.sampled_from(cut(draw, array.shape, draw(st.integers(1, 3)))))
                wanted[name] = shard(np.zeros_like(array), box)
        receivers.append(wanted or None)
    return {
        "model": model,
        "senders": senders,
        "receivers": receivers,
        "bucket": 4096 * draw(st.integers(1, 4)),
        "direct": draw(st.sampled_from([1, 64, 1000, 4096, 1 << 20])),
    }


def shard(array: Array, box: tuple[list[int], list[int]]) -> Shard:
    """A part of an array: a view, which may not be contiguous."""
    start, stop = box
    view = array[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]
    return Shard(view, array.shape, tuple(start))


@settings(max_examples=300 if FULL else 40)
@given(cases())
def test_any_layout(case: dict[str, Any]) -> None:
    versions = [case["model"], {k: np.roll(v, 1) for k, v in case["model"].items()}]

    def send(rank: int) -> Any:  # noqa: ANN401
        def call(sender: WeightSender) -> None:
            for model in versions:
                tensors = {}
                for name, value in case["senders"][rank].items():
                    if isinstance(value, Shard):
                        stop = [a + n for a, n in zip(value.start, value.tensor.shape, strict=True)]
                        tensors[name] = shard(model[name], (list(value.start), stop))
                    else:
                        tensors[name] = model[name]
                sender.send(tensors)

        return call

    def receive(wanted: dict[str, Any] | None) -> Any:  # noqa: ANN401
        def call(receiver: WeightReceiver) -> None:
            for model in versions:
                receiver.receive()
                names = model if wanted is None else wanted
                for name in names:
                    expected = model[name]
                    if wanted is not None:
                        start, extent = wanted[name].start, wanted[name].tensor.shape
                        expected = expected[
                            tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
                        ]
                    got = receiver.tensors[name]
                    assert got.dtype == expected.dtype
                    assert got.shape == expected.shape
                    assert got.tobytes() == expected.tobytes(), name

        return call

    results = run_numpy(
        [send(rank) for rank in range(len(case["senders"]))],
        [receive(wanted) for wanted in case["receivers"]],
        case["receivers"],
        bucket_bytes=case["bucket"],
        direct_bytes=case["direct"],
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    # The first cause, rather than that another member is lost.
    errors.sort(key=lambda error: isinstance(error, WeightsError))
    if errors:
        raise errors[0]


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([((0, 0), (2, 4)), ((3, 0), (4, 4))], "must cover shape"),
        ([((0, 0), (3, 4)), ((2, 0), (4, 4))], "must cover shape"),
        ([((0, 0), (2, 4)), ((3, 0), (5, 4))], "is not within shape"),
    ],
)
def test_wrong_layouts_are_rejected(held: list[Any], text: str) -> None:
    def send(rank: int) -> Any:  # noqa: ANN401
        start, stop = held[rank]
        part = np.zeros([b - a for a, b in zip(start, stop, strict=True)])
        return lambda sender: sender.send({"w": Shard(part, (4, 4), start)})

    results = run([send(0), send(1)], [lambda receiver: receiver.receive()], [None])
    assert text in " ".join(map(str, results))
    assert all(isinstance(result, Exception) for result in results)
