"""A version is committed as a whole, and its number is that of the tensors on all members."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl.weights import (
    ChecksumError,
    PeerLostError,
    SessionClosedError,
    WeightReceiver,
    WeightSender,
    WeightsError,
)
from pynccl.weights.report import Report
from tests.support.tier import FULL
from tests.weights import interrupts
from tests.weights.sessions import run, run_numpy


def test_texts_of_reports_and_errors() -> None:
    report = Report(3, 2_000_000, 0.5, ("a", "b"), ("c", "d"))
    assert str(report) == "version 3: 2.0 MB to 2 receivers in 500.0 ms, 0.00 GB/s; lost: c, d"
    assert Report(1, 5, 0.0, (), ()).bandwidth == 0.0
    for kind in (PeerLostError, ChecksumError):
        error = kind("the text", ("a",))
        assert (str(error), error.names) == ("the text", ("a",))


def half(name: str, version: int) -> dict[str, Any]:
    """A tensor of one of two senders."""
    return {name: np.full(5, version, np.float32)}


def after_an_error(text: str) -> Callable[[WeightReceiver], int | None]:
    """A receiver's function: the first version fails with a text, the second one succeeds."""

    def receive(receiver: WeightReceiver) -> int | None:
        with pytest.raises(WeightsError, match=text):
            receiver.receive()
        assert receiver.version is None
        assert not receiver.is_whole
        receiver.receive()
        assert all((tensor == 2).all() for tensor in receiver.tensors.values())
        return receiver.version

    return receive


def test_senders_of_different_versions() -> None:
    """The senders' version numbers are compared before anything is sent. The session continues."""

    def lead(sender: WeightSender) -> int:
        with pytest.raises(ValueError, match="version: sender 0 sends 1 and sender 1 sends 2"):
            sender.send(half("a", 1))
        return sender.send(half("a", 2), version=2).version

    def follow(sender: WeightSender) -> int:
        with pytest.raises(WeightsError, match="version: sender 0 sends 1 and sender 1 sends 2"):
            sender.send(half("b", 2), version=2)
        return sender.send(half("b", 2), version=2).version

    results = run_numpy([lead, follow], [after_an_error("sender 1 sends 2")], [None])
    assert results == [2, 2, 2], results


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_error_of_a_copy(error: type[BaseException]) -> None:
    """A receiver with parts of two versions is not whole, and not reported as committed."""

    def model(version: int) -> dict[str, Any]:
        return {name: np.full(50, version, np.float32) for name in "abcd"}

    def send(sender: WeightSender) -> list[Any]:
        reports = [sender.send(model(version)) for version in (1, 2)]
        while not sender.waiting():
            time.sleep(0.01)
        return [*reports, sender.send(model(2), version=2)]

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        if receiver.name == "receiver 0":
            memory = receiver._follower._member._memory
            assert memory is not None
            assign = memory.assign
            left = [2]

            def broken(to: Any, source: Any) -> None:  # noqa: ANN401
                if not left[0]:
                    raise error("in the copy")
                left[0] -= 1
                assign(to, source)

            memory.assign = broken  # type: ignore[method-assign, assignment]
            with pytest.raises(error, match="in the copy"):
                receiver.receive()
            assert [float(tensor[0]) for tensor in receiver.tensors.values()] == [2, 2, 1, 1]
            assert not receiver.is_whole
            assert receiver.version is None
            memory.assign = assign  # type: ignore[method-assign]
        else:
            assert receiver.receive().version == 2
        assert receiver.receive().version == receiver.version == 2
        assert receiver.is_whole
        assert all((tensor == 2).all() for tensor in receiver.tensors.values())

    into = [{name: np.zeros(50, np.float32) for name in "abcd"} for _ in range(2)]
    reports, *others = run([send], [receive, receive], into, library="numpy")
    assert others == [None, None], others
    names = [(report.receivers, report.lost) for report in reports]
    both = ("receiver 0", "receiver 1")
    assert [(sorted(receivers), lost) for receivers, lost in names] == [
        (sorted(both), ()),
        (["receiver 1"], ("receiver 0",)),
        (sorted(both), ()),
    ]


@pytest.mark.parametrize("kind", ["offered", "begun"])
def test_interrupt_of_a_sender(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A version that a sender gave up is not mixed with its next one."""

    class Interrupt(BaseException):
        pass

    ready = threading.Event()

    def lead(sender: WeightSender) -> int:
        ready.wait(20)
        with pytest.raises(WeightsError, match=r"Interrupt|interrupted"):
            sender.send(half("a", 1))
        return sender.send(half("a", 2), version=2).version

    def follow(sender: WeightSender) -> int:
        follower = sender._session
        name = "_take_part" if kind == "offered" else "_attempt"
        if kind == "begun":
            ready.set()
        with monkeypatch.context() as patch:
            patch.setattr(follower, name, interrupt)
            with pytest.raises(Interrupt):
                sender.send(half("b", 1))
        ready.set()
        return sender.send(half("b", 2), version=2).version

    def interrupt(_: object) -> None:
        raise Interrupt

    results = run_numpy([lead, follow], [after_an_error(r"Interrupt|interrupted")], [None])
    assert results == [2, 2, 2], results


def test_the_end_of_a_session_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = threading.Event()

    def lead(sender: WeightSender) -> None:
        sender.send(half("a", 1))
        assert interrupted.wait(20)

    def follow(sender: WeightSender) -> None:
        sender.send(half("b", 1))
        with monkeypatch.context() as patch:
            patch.setattr(sender._session, "_take_part", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sender.send(half("b", 2))
        interrupted.set()
        with pytest.raises(SessionClosedError, match="the sender has closed the session"):
            sender.send(half("b", 2))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    results = run_numpy([lead, follow], [lambda receiver: receiver.receive().version], [None])
    assert results == [None, None, 1], results


def test_versions_in_place_have_the_same_tensors() -> None:
    def send(sender: WeightSender) -> None:
        for version in (1, 2):
            sender.send(half("a", version))

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        first = receiver.tensors["a"]
        receiver.receive()
        assert receiver.tensors["a"] is first
        assert (first == 2).all()

    options = {"commit": "in_place", "library": "numpy"}
    assert run_numpy([send], [receive], [None], receiver_options=options) == [None, None]


def test_interrupts_of_commits() -> None:
    """A short run of `python -m tests.weights.interrupts`."""
    interrupts.run(120 if FULL else 40, seed=0)
