"""Flipped bits are detected: a version is sent again, or rejected by name. It is never half new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pynccl import _C
from pynccl.weights import (
    ChecksumError,
    Spec,
    WeightReceiver,
    WeightSender,
    WeightsError,
)
from pynccl.weights.checksum import checksums
from tests.weights import models
from tests.weights.sessions import run, run_numpy


def versions(*numbers: int) -> Any:  # noqa: ANN401
    def call(sender: WeightSender) -> list[Any]:
        return [sender.send(models.make(number), version=number) for number in numbers]

    return call


def flip_bits(receiver: WeightReceiver, times: int) -> list[int]:
    """Flip a bit of the data in this receiver's next transfers, in a bucket or in place.

    Returns a list with the number of transfers that are still to come.
    """
    memory = receiver._follower._member._memory
    assert memory is not None
    left = [times]
    unpack, checksum = memory.unpack, memory.checksum

    def flipped(tensor: torch.Tensor) -> None:
        if left[0]:
            left[0] -= 1
            data = tensor.reshape(-1).view(torch.uint8)
            data[data.numel() // 2] ^= 16

    def unpack_flipped(bucket: Any, offsets: Any, sizes: Any, raws: Any) -> Any:  # noqa: ANN401
        flipped(bucket[offsets[0] : offsets[0] + sizes[0]])
        return unpack(bucket, offsets, sizes, raws)

    def checksum_flipped(raw: Any) -> Any:  # noqa: ANN401
        flipped(raw)
        return checksum(raw)

    memory.unpack, memory.checksum = unpack_flipped, checksum_flipped  # type: ignore[method-assign]
    return left


@pytest.mark.parametrize("direct", [1, 1 << 20])
@pytest.mark.parametrize("commit", ["copy", "in_place"])
def test_a_version_with_flipped_bits_is_sent_again(commit: str, direct: int) -> None:
    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        left = flip_bits(receiver, 3)
        receiver.receive()
        assert left == [0]
        assert models.equal(receiver.tensors, models.make(2))

    def receive_well(receiver: WeightReceiver) -> None:
        receiver.receive()
        receiver.receive()
        assert models.equal(receiver.tensors, models.make(2))

    sent, *others = run(
        [versions(1, 2)],
        [receive, receive_well],
        [models.blank(models.make(0)), models.blank(models.make(0))],
        receiver_options={"commit": commit},
        bucket_bytes=1 << 20,
        direct_bytes=direct,
    )
    assert others == [None, None], others
    assert [report.lost for report in sent] == [(), ()]


def test_permanently_flipped_bits_are_rejected() -> None:
    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        flip_bits(receiver, 1000)
        with pytest.raises(ChecksumError, match="embedding") as caught:
            receiver.receive()
        assert "embedding" in caught.value.names
        assert receiver.version == 1
        assert models.equal(receiver.tensors, models.make(1))

    def receive_well(receiver: WeightReceiver) -> None:
        receiver.receive()
        with pytest.raises(ChecksumError, match="embedding"):
            receiver.receive()
        # All receivers keep the same version.
        assert models.equal(receiver.tensors, models.make(1))

    sent, *others = run(
        [versions(1, 2)],
        [receive, receive_well],
        [models.blank(models.make(0)), models.blank(models.make(0))],
        bucket_bytes=1 << 20,
        direct_bytes=1,
    )
    assert others == [None, None], others
    assert isinstance(sent, ChecksumError)


def test_tensors_of_an_iterator_cannot_be_sent_again() -> None:
    """The error names the tensors and what to pass instead, and the session continues."""
    model = models.make(1)
    metadata = {name: Spec.of(tensor) for name, tensor in model.items()}
    instead = "pass a function that creates an iterator in each call, or a list"

    def send(sender: WeightSender) -> None:
        sender.send(model)
        for _ in range(2):
            items = iter(model.items())
            with pytest.raises(ChecksumError, match=f"embedding.*differ.*{instead}") as caught:
                sender.send(lambda items=items: items, metadata=metadata)
            assert "embedding" in caught.value.names
        with pytest.raises(ValueError, match=r"produced nothing; a generator can be used for one"):
            sender.send(lambda: items, metadata=metadata)
        report = sender.send(lambda: list(model.items()), metadata=metadata)
        assert report.version == 2

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        for _ in range(2):
            left = flip_bits(receiver, 1)
            with pytest.raises(ChecksumError, match=instead) as caught:
                receiver.receive()
            assert "embedding" in caught.value.names
            assert left == [0]
        with pytest.raises(WeightsError, match="produced nothing"):
            receiver.receive()
        left = flip_bits(receiver, 1)
        assert receiver.receive().version == 2
        assert left == [0]
        assert models.equal(receiver.tensors, model)

    results = run([send], [receive], [None], bucket_bytes=1 << 20, direct_bytes=1)
    assert results == [None, None], results


@pytest.mark.parametrize("once", [0, 1])
def test_a_sender_of_several_cannot_send_again(once: int) -> None:
    """All members learn why another attempt was necessary, and why it failed."""
    model = models.make(1)
    text = "embedding differ.*tensors: the function returned the same iterator"

    def sender(number: int) -> Any:  # noqa: ANN401
        metadata = {
            name: Spec.of(tensor) if index % 2 == number else None
            for index, (name, tensor) in enumerate(model.items())
        }

        def send(sender: WeightSender) -> None:
            items = iter(model.items())
            sender.send(lambda: list(model.items()), metadata=metadata, version=1)
            match = text
            if number == once == 1:  # only the first sender knows the checksums
                match = "^tensors: the function returned the same iterator"
            with pytest.raises(WeightsError, match=match):
                sender.send(
                    lambda: items if number == once else list(model.items()),
                    metadata=metadata,
                    version=2,
                )
            sender.send(lambda: list(model.items()), metadata=metadata, version=3)

        return send

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        flip_bits(receiver, 1)
        with pytest.raises(ChecksumError, match=text) as caught:
            receiver.receive()
        assert "embedding" in caught.value.names
        assert receiver.receive().version == 3

    results = run([sender(0), sender(1)], [receive], [None], bucket_bytes=1 << 20, direct_bytes=1)
    assert results == [None] * 3, results


def test_error_of_the_tensors() -> None:
    """An error while tensors are produced ends the version, and the session continues."""
    model = models.make(1)
    metadata = {name: Spec.of(tensor) for name, tensor in model.items()}

    def gather(stop: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in model.items():
            if name == stop:
                raise KeyError(name)
            yield name, tensor.clone()

    def send(sender: WeightSender) -> None:
        with pytest.raises(KeyError):
            sender.send(lambda: gather("large"), metadata=metadata)
        sender.send(lambda: gather(""), metadata=metadata)

    def receive(receiver: WeightReceiver) -> None:
        with pytest.raises(WeightsError, match="KeyError: 'large'"):
            receiver.receive()
        assert not receiver.is_whole
        assert receiver.receive().version == 1
        assert models.equal(receiver.tensors, model)

    results = run([send], [receive, receive], [None, None], bucket_bytes=1 << 16)
    assert results == [None, None, None], results


def test_error_of_another_sender() -> None:
    """The same on a sender other than the first."""
    spec = {"a": None, "b": Spec("float32", (4,))}

    def lead(sender: WeightSender) -> None:
        with pytest.raises(WeightsError, match="sender 1: KeyError"):
            sender.send({"a": np.ones(4, np.float32)})
        sender.send({"a": np.ones(4, np.float32)})

    def follow(sender: WeightSender) -> None:
        def fail() -> Iterator[tuple[str, Any]]:
            yield "a", None
            raise KeyError("b")

        with pytest.raises(KeyError):
            sender.send(fail, metadata=spec)
        sender.send({"b": np.ones(4, np.float32)})

    def receive(receiver: WeightReceiver) -> None:
        with pytest.raises(WeightsError, match="sender 1: KeyError"):
            receiver.receive()
        receiver.receive()
        assert all((tensor == 1).all() for tensor in receiver.tensors.values())

    results = run_numpy([lead, follow], [receive], [None])
    assert results == [None, None, None], results


def test_other_dtypes() -> None:
    """If all receivers round to the same dtype, the sender rounds, with the same values."""
    model = {"w": torch.randn(100, 70), "b": torch.randn(9), "i": torch.arange(5)}
    narrow = {
        "w": torch.zeros(100, 70, dtype=torch.bfloat16),
        "b": torch.zeros(9, dtype=torch.float64),
    }

    def receive(receiver: WeightReceiver) -> Any:  # noqa: ANN401
        report = receiver.receive()
        assert torch.equal(receiver.tensors["w"], model["w"].to(torch.bfloat16))
        assert torch.equal(receiver.tensors["b"], model["b"].to(torch.float64))
        return report.nbytes

    results = run(
        [lambda sender: sender.send(model)],
        [receive, receive],
        [models.blank(narrow), models.blank(narrow)],
        bucket_bytes=4096,
    )
    assert results[1:] == [100 * 70 * 2 + 9 * 4] * 2, results


def test_checksums_on_host_and_by_torch() -> None:
    random = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 9, 4095, 4096, 4097, 100_001, (1 << 22) + 3):
        data = torch.from_numpy(random.integers(0, 256, size + 3, np.uint8))
        for start in (0, 3):
            part = data[start : start + size]
            assert _C.checksum(part) == checksums([part])[0], (size, start)


@pytest.mark.parametrize("size", [1, 8, 100, 4096, 5000])
def test_every_flipped_bit_changes_the_checksum(size: int) -> None:
    data = np.zeros(size, np.uint8)
    known = {_C.checksum(data)}
    for bit in range(0, 8 * size, 1 if size < 1000 else 37):
        data[bit // 8] ^= 1 << bit % 8
        known.add(_C.checksum(data))
        data[bit // 8] ^= 1 << bit % 8
    assert len(known) == 1 + len(range(0, 8 * size, 1 if size < 1000 else 37))
    swapped = np.random.default_rng(1).integers(0, 256, 8192, np.uint8)
    assert _C.checksum(swapped) != _C.checksum(np.roll(swapped, 4096))


def test_tensors_that_do_not_fit_a_bucket() -> None:
    bucket, tensor = np.zeros(16, np.uint8), np.ones(4, np.float32)
    for text, offsets, sizes in (
        ("tensors: there are 1 for 2 offsets and 1 sizes", [0, 0], [16]),
        ("tensors: there are 1 for 1 offsets and 0 sizes", [0], []),
        ("tensors: number 0 has 16 bytes, not 12", [0], [12]),
        ("offsets: 16 bytes at 1 are outside the bucket of 16 bytes", [1], [16]),
        ("offsets: 16 bytes at 17 are outside the bucket of 16 bytes", [17], [16]),
    ):
        for copy in (_C.pack, _C.unpack):
            with pytest.raises(ValueError, match=text):
                copy(bucket, offsets, sizes, [tensor])
    assert not bucket.any()
    assert (tensor == 1).all()
