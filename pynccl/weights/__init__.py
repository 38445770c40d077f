"""Weight transfer from trainers to inference engines: verified, atomic versions of tensors.

    from pynccl.weights import WeightReceiver, WeightSender

    sender = WeightSender("0.0.0.0:29600", receivers=2)  # in the trainer
    report = sender.send(dict(model.named_parameters()))

    receiver = WeightReceiver("trainer:29600", into=dict(model.named_parameters()))
    report = receiver.receive()  # in each engine

A session is independent of process groups and needs no framework. See docs/weights.md.

Rules of the implementation:

* The plan is computed, not sent (``plan``). All members derive it from the same metadata, so it
  must not depend on the member.
* Sender 0 decides (``leader``, ``follower``). A member that fails reports it and waits for the end
  of the attempt. Messages of an earlier attempt are recognized by their epoch.
* A failed attempt leaves no state: communicators and buckets are dropped and created again.
* Nothing is committed before all checksums are correct on all surviving receivers, which
  acknowledge their commits.
* A receiver's tensors and their version are one value (``target``), replaced by one assignment.
  The version is None from before the first byte is written.
* Offers and ends of versions alternate, even after an interrupt; sender 0 counts both.
* A receiver with a local error closes its connection and joins again in its next receive().
* Neither the threads nor the finalizers refer to the sender or receiver object, so it is collected
  with its last reference.
* No data is read before the proof of the key (``handshake``). An invalid message closes only its
  own connection. A new field needs a codec with a bound and a seed in tests/fuzz/corpus.py.
* Sockets are created within ``creation()`` of pynccl/_internal/sockets.py and passed to
  ``track()``, which closes them in forked children.
* Every wait has a limit, and ends when a control connection closes.
"""

from pynccl.weights.errors import (
    ChecksumError,
    PeerLostError,
    SessionClosedError,
    WeightsError,
)
from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender
from pynccl.weights.source import Shard, Spec

__all__ = [
    "ChecksumError",
    "PeerLostError",
    "Report",
    "SessionClosedError",
    "Shard",
    "Spec",
    "WeightReceiver",
    "WeightSender",
    "WeightsError",
]
