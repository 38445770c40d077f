"""Weights from trainers to inference engines: versions of tensors, verified and atomic.

    from pynccl.weights import WeightReceiver, WeightSender

    sender = WeightSender("0.0.0.0:29600", receivers=2)  # in the trainer
    report = sender.send(dict(model.named_parameters()))

    receiver = WeightReceiver("trainer:29600", into=dict(model.named_parameters()))
    report = receiver.receive()  # in each engine

The session is beside all process groups and needs no framework. See docs/weights.md.
"""

from pynccl.weights.errors import (
    ChecksumError,
    PeerLostError,
    SessionClosedError,
    WeightsError,
)
from pynccl.weights.progress import ProgressBar
from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender
from pynccl.weights.source import Shard, Spec

__all__ = [
    "ChecksumError",
    "PeerLostError",
    "ProgressBar",
    "Report",
    "SessionClosedError",
    "Shard",
    "Spec",
    "WeightReceiver",
    "WeightSender",
    "WeightsError",
]
