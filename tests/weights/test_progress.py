"""Progress and reports."""

from __future__ import annotations

from typing import Any

import torch

from pynccl.weights import ChecksumError, PeerLostError
from pynccl.weights.report import Report
from tests.weights import models
from tests.weights.sessions import run


def test_progress() -> None:
    tensors = {f"{i}": torch.rand(50_000) for i in range(6)}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []

    def note(calls: list[tuple[int, int]]) -> Any:  # noqa: ANN401
        return lambda done, total: calls.append((done, total))

    run(
        [lambda sender: sender.send(tensors)],
        [lambda receiver: receiver.receive()],
        [models.blank(tensors)],
        progress=note(sent),
        receiver_options={"progress": note(received)},
        bucket_bytes=1 << 18,
        direct_bytes=1 << 16,
    )
    for calls in (sent, received):
        assert calls[0] == (0, nbytes)
        assert calls[-1] == (nbytes, nbytes)
        assert calls == sorted(calls)
        assert len(calls) > 3


def test_texts_of_reports_and_errors() -> None:
    report = Report(3, 2_000_000, 0.5, ("a", "b"), ("c", "d"), ("w",))
    assert str(report) == (
        "version 3: 2.0 MB to 2 receivers in 500.0 ms, 0.00 GB/s; lost: c, d; sent again: w"
    )
    assert Report(1, 5, 0.0, (), (), ()).bandwidth == 0.0
    for kind in (PeerLostError, ChecksumError):
        error = kind("the text", ("a",))
        assert (str(error), error.names) == ("the text", ("a",))
