"""A version is whole or not there: its number and its tensors are the same on all members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pynccl.weights import WeightReceiver, WeightSender, WeightsError
from tests.weights.sessions import run


def half(name: str, version: int) -> dict[str, Any]:
    """The tensor of one of two senders."""
    return {name: np.full(5, version, np.float32)}


def test_senders_of_different_versions() -> None:
    """The numbers of the senders are compared before anything is sent; the session goes on."""

    def lead(sender: WeightSender) -> int:
        with pytest.raises(ValueError, match="version: sender 0 sends 1 and sender 1 sends 2"):
            sender.send(half("a", 1))
        return sender.send(half("a", 2), version=2).version

    def follow(sender: WeightSender) -> int:
        with pytest.raises(WeightsError, match="version: sender 0 sends 1 and sender 1 sends 2"):
            sender.send(half("b", 2), version=2)
        return sender.send(half("b", 2), version=2).version

    def receive(receiver: WeightReceiver) -> int | None:
        with pytest.raises(WeightsError, match="sender 1 sends 2"):
            receiver.receive()
        assert receiver.version is None
        assert not receiver.is_whole
        receiver.receive()
        assert all((tensor == 2).all() for tensor in receiver.tensors.values())
        return receiver.version

    results = run(
        [lead, follow], [receive], [None], receiver_options={"library": "numpy"}, library="numpy"
    )
    assert results == [2, 2, 2], results
