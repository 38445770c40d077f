"""Gathering tensors during a transfer does not deadlock, and the extra memory is bounded."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pynccl.weights import Spec, WeightReceiver, WeightSender
from tests.weights.sessions import run, run_numpy

Array = NDArray[Any]
COUNT = 24


def tensor(number: int) -> Array:
    return np.full((10 + 17 * number, 16), number, np.float32)


def specs(numbers: range) -> dict[str, Spec]:
    return {f"t{n}": Spec("float32", tensor(n).shape) for n in numbers}


@pytest.mark.parametrize("bucket", [4096, 1 << 14])
@pytest.mark.parametrize("nsenders", [1, 3])
def test_gathered_on_all_senders(nsenders: int, bucket: int) -> None:
    """All ranks gather each tensor. Each sender sends every nth, the last sends none."""
    ranks = nsenders + 1
    meeting = threading.Barrier(ranks)
    calls = []

    def gather() -> Iterator[tuple[str, Array]]:
        calls.append(1)
        for number in range(COUNT):
            meeting.wait(15)  # a collective of the trainer
            yield f"t{number}", tensor(number)

    def send(rank: int) -> Any:  # noqa: ANN401
        mine = specs(range(rank, COUNT, nsenders)) if rank < nsenders else {}
        metadata = {f"t{n}": mine.get(f"t{n}") for n in range(COUNT)}

        def call(sender: WeightSender) -> None:
            for _ in range(2):
                sender.send(gather, metadata=metadata)

        return call

    def receive(receiver: WeightReceiver) -> None:
        for _ in range(2):
            receiver.receive()
            for number in range(COUNT):
                assert np.array_equal(receiver.tensors[f"t{number}"], tensor(number))

    results = run_numpy(
        [send(rank) for rank in range(ranks)],
        [receive, receive],
        [None, None],
        bucket_bytes=bucket,
    )
    assert results == [None] * (ranks + 2), results
    assert len(calls) == 2 * ranks


def test_orders_must_be_equal() -> None:
    def send(rank: int) -> Any:  # noqa: ANN401
        metadata = specs(range(3)) if rank == 0 else dict.fromkeys(["t1", "t0", "t2"])
        return lambda sender: sender.send(lambda: iter(()), metadata=metadata)

    results = run(
        [send(0), send(1)], [lambda receiver: receiver.receive()], [None], library="numpy"
    )
    assert all("different names or orders" in str(result) for result in results), results


def test_order_must_be_that_of_the_metadata() -> None:
    def send(sender: WeightSender) -> None:
        with pytest.raises(ValueError, match="order must match the metadata"):
            sender.send(
                lambda: ((f"t{n}", tensor(n)) for n in reversed(range(5))),
                metadata=specs(range(5)),
            )

    def receive(receiver: WeightReceiver) -> None:
        with pytest.raises(Exception, match="order must match the metadata"):
            receiver.receive()

    results = run_numpy([send], [receive], [None])
    assert results == [None, None], results


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("shape", "count", "bucket"), [((1024, 256), 24, 1 << 18), ((128, 128), 128, 1 << 22)]
)
def test_peak_of_extra_memory(shape: tuple[int, int], count: int, bucket: int, lazy: bool) -> None:
    """Two buckets per member (NCCL's memory, not counted), and one tensor if lazy."""
    names = [f"t{n}" for n in range(count)]
    one = 4 * shape[0] * shape[1]
    into = {name: np.zeros(shape, np.float32) for name in names}
    held = {} if lazy else {name: np.full(shape, 3, np.float32) for name in names}
    peaks = []

    def send(sender: WeightSender) -> None:
        def gather() -> Iterator[tuple[str, Array]]:
            for name in names:
                yield name, np.full(shape, 3, np.float32)

        def once() -> None:
            if lazy:
                spec = Spec("float32", shape)
                sender.send(gather, metadata=dict.fromkeys(names, spec))
            else:
                sender.send(held)

        once()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        once()
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        receiver.receive()
        ring = receiver._follower._member.ring
        assert ring is not None
        assert [slot.buffer.nbytes for slot in ring._slots] == [bucket, bucket]

    results = run(
        [send],
        [receive],
        [into],
        receiver_options={"commit": "in_place"},
        bucket_bytes=bucket,
        library="numpy",
    )
    assert results == [None, None], results
    assert (into["t23"] == 3).all()
    # tracemalloc sees NumPy's memory of both threads; half a MiB is for all else.
    assert peaks[0] < (one if lazy else 0) + (1 << 19), peaks
