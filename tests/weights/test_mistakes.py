"""Mistakes, local errors and unusual sessions end as documented, and immediately."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pynccl.errors import NcclSystemError
from pynccl.weights import (
    PeerLostError,
    SessionClosedError,
    Shard,
    Spec,
    WeightReceiver,
    WeightSender,
    WeightsError,
    meeting,
)
from pynccl.weights.layout import Layout
from pynccl.weights.memory import memory_of
from pynccl.weights.messages import FROM_LEADER
from pynccl.weights.plan import make_plan
from pynccl.weights.ring import Ring
from pynccl.weights.source import layout_of_specs
from pynccl.weights.target import Target
from pynccl.weights.watch import Watcher
from pynccl.weights.wire import Deadline, Link, wait
from tests.support import holdings
from tests.support.blocking import interrupt_when_blocked, wait_until
from tests.support.tier import FULL
from tests.weights.peers import KEY
from tests.weights.sessions import NUMPY, MemoryStore, run, run_numpy, together

SOON = 5.0  # seconds, far below the timeout of run()


def model(value: float = 1) -> dict[str, Any]:
    return {"w": np.full((2, 3), value, np.float32), "b": np.full(5, value, np.float32)}


def test_receiver_that_requests_nothing() -> None:
    """An empty `into` requests nothing, None requests everything."""

    def receive(receiver: WeightReceiver) -> int:
        receiver.receive()
        return len(receiver.tensors)

    _, *counts = run_numpy([lambda sender: sender.send(model())], [receive, receive], [{}, None])
    assert counts == [0, 2], counts


@pytest.mark.parametrize("commit", ["in_place", "swap"])
@pytest.mark.parametrize("place", ["memory", "transfer", "nccl"])
def test_receiver_with_a_local_error_is_dropped(
    monkeypatch: pytest.MonkeyPatch, place: str, commit: str
) -> None:
    """It fails while it allocates or unpacks. The others get the version, and it can rejoin."""
    owner, name = {
        "memory": (Target, "_new"),
        "transfer": (Target, "view"),
        "nccl": (Ring, "__init__"),
    }[place]
    function = getattr(owner, name)
    ill = [0]  # the thread of the engine that cannot receive

    def broken(*args: object) -> object:
        if threading.get_ident() == ill[0]:
            raise NcclSystemError("no memory") if place == "nccl" else MemoryError("no memory")
        return function(*args)

    monkeypatch.setattr(owner, name, broken)
    joined = threading.Event()

    def send(sender: WeightSender) -> list[Any]:
        reports = [sender.send(model(1)), sender.send(model(2))]
        joined.set()
        while not sender.waiting():
            time.sleep(0.01)
        return [*reports, sender.send(model(3))]

    def receive(receiver: WeightReceiver) -> str:
        if receiver.name == "receiver 1":
            for version in (1, 2, 3):
                assert receiver.receive().version == version
                assert (receiver.tensors["w"] == version).all()
            return "well"
        ill[0] = threading.get_ident()
        with pytest.raises((MemoryError, NcclSystemError), match="no memory"):
            receiver.receive()
        assert not receiver.is_whole
        joined.wait(20)
        ill[0] = 0
        assert receiver.receive().version == 3
        assert (receiver.tensors["w"] == 3).all()
        return "ill"

    reports, *others = run(
        [send],
        [receive, receive],
        [None, None],
        receiver_options={"library": "numpy", "commit": commit},
        library="numpy",
    )
    assert others == ["ill", "well"], others
    assert [report.lost for report in reports] == [("receiver 0",), (), ()]
    assert [len(report.receivers) for report in reports] == [1, 1, 2]


def test_error_of_the_only_receiver() -> None:
    """The sender raises its error, and the session continues."""

    def send(sender: WeightSender) -> int:
        with pytest.raises(WeightsError, match="receiver 0: KeyError: 'local'"):
            sender.send(model())
        while not sender.waiting():
            time.sleep(0.01)
        return sender.send(model()).version

    def receive(receiver: WeightReceiver) -> int:
        def fail() -> None:
            raise KeyError("local")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receiver._follower, "_transfer", fail)
            with pytest.raises(KeyError):
                receiver.receive()
        return receiver.receive().version

    assert run_numpy([send], [receive], [None]) == [1, 1]


def test_waiting_counts_until_the_next_version() -> None:
    store = MemoryStore()
    with (
        WeightSender(store, **NUMPY) as sender,
        WeightReceiver(store, **NUMPY) as receiver,
    ):
        together(lambda: sender.send(model()), receiver.receive)
        assert sender.waiting() == 0
        with WeightReceiver(store, **NUMPY) as other:
            while not sender.waiting():
                time.sleep(0.01)
            assert sender.waiting() == 1
            results = together(
                lambda: sender.send(model(), version=sender.version),
                receiver.receive,
                other.receive,
            )
            assert [result.version for result in results] == [1, 1, 1]
            assert sender.waiting() == 0


def test_receiver_that_leaves_is_not_lost() -> None:
    store = MemoryStore()
    with (
        WeightSender(store, receivers=2, **NUMPY) as sender,
        WeightReceiver(store, **NUMPY) as receiver,
    ):
        with WeightReceiver(store, name="guest", **NUMPY) as guest:
            together(lambda: sender.send(model()), receiver.receive, guest.receive)
        sent, _ = together(lambda: sender.send(model()), receiver.receive)
        assert (len(sent.receivers), sent.lost) == (1, ())


def test_members_after_the_end() -> None:
    store = MemoryStore()
    sender = WeightSender(store, timeout=0.2, library="numpy")
    receiver = WeightReceiver(store, **NUMPY)
    receiver.close()
    with pytest.raises(SessionClosedError, match="the session is closed"):
        receiver.receive()
    with pytest.raises(WeightsError):
        sender.send(model())
    sender.close()
    with pytest.raises(WeightsError, match="the session is closed"):
        sender.send(model())
    lonely = WeightSender(MemoryStore(), timeout=0.2, library="numpy")
    with pytest.raises(PeerLostError):
        lonely.send(model())
    with pytest.raises(WeightsError, match="the session is closed"):
        lonely.send(model())


def test_offer_of_a_version_that_could_not_begin() -> None:
    """Sender 1 sends a layout once. The leader stores it even if the version had no receivers."""
    store = MemoryStore()
    first, second = {"a": np.ones(3, np.float32)}, {"b": np.ones(4, np.float32)}
    with (
        WeightSender(store, senders=2, **NUMPY) as sender,
        WeightSender(store, rank=1, senders=2, **NUMPY) as other,
    ):
        with WeightReceiver(store, **NUMPY) as guest:
            together(lambda: sender.send(first), lambda: other.send(first), guest.receive)
        # Sender 1 now sends other tensors, and no receiver is connected.
        results = together(lambda: sender.send(first), lambda: other.send(second))
        assert ["there are no receivers" in str(result) for result in results] == [True, True]
        with WeightReceiver(store, **NUMPY) as receiver:
            together(lambda: sender.send(first), lambda: other.send(second), receiver.receive)
            assert sorted(receiver.tensors) == ["a", "b"]


def test_sender_whose_leader_does_not_send() -> None:
    store = MemoryStore()
    with WeightSender(store, senders=2, **NUMPY):
        other = WeightSender(store, rank=1, senders=2, **NUMPY)
        other._member.timeout = 0.2
        with pytest.raises(PeerLostError, match="sender 0 has not answered"):
            other.send(model())


def test_sender_that_starts_again_at_the_same_store() -> None:
    """A receiver that joins earlier finds the old address, and reads the store again."""
    store = MemoryStore()
    WeightSender(store, **NUMPY).close()

    def send() -> None:
        time.sleep(0.2)
        with WeightSender(store, **NUMPY) as sender:
            sender.send(model())

    def receive() -> int:
        with WeightReceiver(store, **NUMPY) as receiver:
            return receiver.receive().version

    assert together(send, receive) == [None, 1]


def test_store_with_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver gives up an address that does not answer, and reads the store again."""
    monkeypatch.setattr(meeting, "_TRY", 0.3)
    old, store = MemoryStore(), MemoryStore()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        WeightSender(store, **NUMPY),
    ):
        values = iter([f"127.0.0.1:{silent.getsockname()[1]} key".encode()])
        monkeypatch.setattr(old, "check", store.check)
        monkeypatch.setattr(old, "get", lambda key: next(values, store.get(key)))
        WeightReceiver(old, **NUMPY).close()


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        return own, server.accept()[0]


def test_connection_that_ends_during_a_transfer() -> None:
    """NCCL may not detect the death of a peer, so its wait is interrupted."""
    own, other = _connected()
    link, watcher, interrupted = Link(own, FROM_LEADER, 1), Watcher(), threading.Event()
    with watcher.watch([link], interrupted.set):
        other.close()
        assert interrupted.wait(SOON)
    watcher.close()
    link.close()


def test_a_wait_for_links_ends_at_its_deadline_or_with_a_lost_one() -> None:
    own, other = _connected()
    link = Link(own, FROM_LEADER, 1)
    began = time.monotonic()
    wait([link], Deadline(0.2))
    assert time.monotonic() - began > 0.15
    link.lose("a test")
    wait([link], Deadline(None))
    other.close()


def test_descriptors_above_1024() -> None:
    """select() does not support them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("the limit of descriptors is below 2048")
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.dup(0))
        results = run_numpy(
            [lambda sender: sender.send(model()).version],
            [lambda receiver: receiver.receive().version],
            [None],
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert results == [1, 1]


def test_same_tensors_of_another_dtype_shape_and_memory() -> None:
    """A parameter keeps its identity when a module is converted or its memory is replaced."""
    short = torch.zeros(4, dtype=torch.int16)
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    values = [
        (torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int16)),
        (torch.ones(4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.int16)),
        (torch.ones(4, dtype=torch.float16), torch.arange(6, dtype=torch.int16)),
    ]

    def send(sender: WeightSender) -> None:
        for weight.data, short.data in values:
            sender.send({"weight": weight, "short": short})

    def receive(receiver: WeightReceiver) -> None:
        for expected in values:
            receiver.receive()
            for got, value in zip(receiver.tensors.values(), expected, strict=True):
                assert got.dtype == value.dtype
                assert torch.equal(got, value)

    assert run([send], [receive], [None]) == [None, None]


@pytest.mark.parametrize("state", ["joins", "transfers"])
def test_interrupt_of_a_wait(state: str) -> None:
    """Ctrl-C immediately ends the wait for an idle engine, and the next version succeeds.

    The engine is idle from the beginning, or after a version.
    """
    caught: list[float] = []

    def interrupt(*_: object) -> None:
        caught.append(time.monotonic())
        raise KeyboardInterrupt

    last = signal.signal(signal.SIGINT, interrupt)
    store = MemoryStore()
    options: dict[str, Any] = {"timeout": 60, "library": "numpy"}
    try:
        with (
            WeightSender(store, receivers=2, **options) as sender,
            WeightReceiver(store, **options) as receiver,
            WeightReceiver(store, name="asleep", **options) as asleep,
        ):
            if state == "transfers":
                together(lambda: sender.send(model()), receiver.receive, asleep.receive)
            results: list[Any] = []

            def receive() -> None:
                try:
                    receiver.receive()
                except WeightsError as error:
                    results.append(str(error))
                results.append(receiver.receive().lost)

            thread = threading.Thread(target=receive)
            thread.start()
            interrupt_when_blocked()
            with pytest.raises(KeyboardInterrupt):
                sender.send(model())
            seconds = time.monotonic() - caught[0]
            assert sender.send(model()).lost == ("asleep",)
            thread.join(20)
    finally:
        signal.signal(signal.SIGINT, last)
    assert len(results) == 2, results
    assert "KeyboardInterrupt" in results[0]
    assert seconds < SOON  # a few milliseconds; a member that is asked takes 5 s


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"w": np.array(["a"])}, "w: dtype: '<U1' is not supported"),
        ({"w": np.zeros(2, ">f4")}, "w: dtype: '>f4' is not supported"),
        ({"w": Shard(np.zeros(2), (2.5,), (0,))}, r"w: shape: expected integers, got \(2.5,\)"),
        ({"w": Shard(np.zeros(2), (4,), 0)}, "w: start: expected integers, got 0"),  # type: ignore[arg-type]
        ({"w": np.broadcast_to(np.zeros(1), 5)}, "into: w is a read-only array"),
        ({"w": "text"}, "tensors: expected a tensor, got str"),
        ({3: np.zeros(2)}, "3: the name of a tensor must be a str"),
        ({"w" * 5000: np.zeros(2)}, "has 5000 characters, more than 4096"),
    ],
)
def test_wrong_tensors(tensors: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        WeightReceiver("127.0.0.1:1", tensors, timeout=0.1)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec(torch.float32, (2,)), "w: dtype: torch.float32 is not supported"),  # type: ignore[arg-type]
        (Spec("float32", 2), "w: shape: expected integers, got 2"),  # type: ignore[arg-type]
        (Spec("float32", (2, 3), (1,)), r"w: start is \(1,\)"),
    ],
)
def test_wrong_metadata(spec: Spec, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        layout_of_specs({"w": spec})


_TWO = layout_of_specs({"w": Spec("float32", (2,))})
_THREE = layout_of_specs({"w": Spec("float32", (3,))})
_OTHER = layout_of_specs({"v": Spec("float32", (2,))})
_BYTES = layout_of_specs({"w": Spec("int8", (2,))})


@pytest.mark.parametrize(
    ("senders", "receiver", "order", "text"),
    [
        ([_TWO], _OTHER, None, "v: a receiver requests it, but no sender has it"),
        ([_TWO], None, ["w", "v"], "v: it is in the metadata, but no sender has it"),
        ([_TWO], _THREE, None, r"w: its shape is \(2,\) on the senders and \(3,\) on a receiver"),
        ([_TWO], _BYTES, None, "w: float32 of the senders would lose values as int8 of a receiver"),
        (
            [_TWO, _THREE],
            None,
            None,
            r"w: it is float32 of shape \(2,\) .* shape \(3,\) on another",
        ),
    ],
)
def test_layouts_that_do_not_fit_together(
    senders: list[Layout], receiver: Layout | None, order: list[str] | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make_plan(senders, [receiver], order, 4096, 4096)


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        (WeightSender, {"address": "nowhere"}, "address: 'nowhere'"),
        (WeightSender, {"address": 5}, "address: expected"),
        (WeightSender, {"rank": 1}, "rank: 1 is not in"),
        (WeightSender, {"receivers": 0}, "receivers: 0"),
        (WeightSender, {"bucket_bytes": 100}, "bucket_bytes: 100"),
        (WeightSender, {"direct_bytes": 0}, "direct_bytes: 0"),
        (WeightSender, {"timeout": 0}, "timeout: 0"),
        (WeightSender, {"timeout": "soon"}, "timeout: expected seconds"),
        (WeightReceiver, {"name": 0}, "name: expected a str or None, got 0"),
        (WeightReceiver, {"timeout": float("inf")}, "timeout: inf"),
        (WeightReceiver, {"timeout": float("nan")}, "timeout: nan"),
        (WeightReceiver, {"timeout": 1e30}, r"timeout: 1e\+30"),
        (WeightReceiver, {"timeout": -1}, "timeout: -1"),
        (WeightReceiver, {"commit": "later"}, "'later' is not one of 'swap', 'copy', 'in_place'"),
        (WeightReceiver, {"commit": "copy"}, "commit: 'copy' is for receivers with into"),
        (
            WeightReceiver,
            {"commit": "swap", "into": model()},
            "commit: 'swap' is for receivers without into",
        ),
        *(
            (member, arguments, text)
            for member in (WeightSender, WeightReceiver)
            for arguments, text in (
                ({"key": "x" * 31}, "key: has 31 characters"),
                ({"key": b"x" * 32}, "key: expected a str, a path or None, got bytes"),
                ({"key": KEY, "insecure": True}, "insecure: a session with a key"),
                ({"tls": True}, "tls: expected an ssl.SSLContext or None, got bool"),
            )
        ),
    ],
)
def test_wrong_arguments(call: Any, arguments: dict[str, Any], text: str) -> None:  # noqa: ANN401
    with pytest.raises((ValueError, TypeError), match=text) as caught:
        call(**{"address": "127.0.0.1:1", **arguments})
    assert KEY not in str(caught.value)


def test_combinations_without_support() -> None:
    with pytest.raises(ValueError, match="library: 'jax' is neither"):
        memory_of("jax", "host", 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NumPy does not support memory of GPUs"):
        memory_of("numpy", "cuda", 0)


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "text"),
    [
        (model(), {}, ValueError, "metadata: only for tensors that a function produces"),
        (3, None, TypeError, "tensors: expected a mapping, or a function .*, got int"),
        (iter(()), {}, TypeError, "got tuple_iterator; pass the function that creates a generator"),
        (
            lambda _: None,
            None,
            ValueError,
            "metadata: required for tensors that a function produces",
        ),
    ],
)
def test_wrong_sources(
    tensors: Any,  # noqa: ANN401
    metadata: dict[str, Spec] | None,
    error: type[Exception],
    text: str,
) -> None:
    with WeightSender("127.0.0.1:0") as sender, pytest.raises(error, match=text):
        sender.send(tensors, metadata=metadata)


@pytest.mark.parametrize(
    ("version", "text"), [(1.5, "'float' object"), ("1", "'str' object"), (1 << 63, "version: 92")]
)
def test_wrong_versions(version: Any, text: str) -> None:  # noqa: ANN401
    with (
        WeightSender("127.0.0.1:0") as sender,
        pytest.raises((TypeError, ValueError), match=text),
    ):
        sender.send(model(), version=version)


def test_a_version_of_numpy() -> None:
    sent, received = run_numpy(
        [lambda sender: sender.send(model(), version=np.int64(7)).version],  # type: ignore[arg-type]
        [lambda receiver: receiver.receive().version],
        [None],
    )
    assert (sent, received) == (7, 7)
    assert type(sent) is int


_ENDS = 0.5  # seconds until the threads of closed sessions have ended


def test_sessions_leave_nothing() -> None:
    """Many sessions, some of which fail, leak no descriptors, threads or mappings."""

    def session(fails: bool) -> None:
        def gather() -> Iterator[tuple[str, Any]]:
            yield "w", model()["w"]
            if fails:
                raise KeyError("b")
            yield "b", model()["b"]

        specs = {"w": Spec("float32", (2, 3)), "b": Spec("float32", (5,))}
        run_numpy(
            [lambda sender: sender.send(gather, metadata=specs)],
            [lambda receiver: receiver.receive(), lambda receiver: receiver.receive()],
            [None, None],
        )

    for number in range(4):
        session(bool(number % 2))
    gc.collect()  # tracebacks of the errors refer to each other
    time.sleep(_ENDS)
    before = holdings.count()
    for number in range(40 if FULL else 12):
        session(bool(number % 2))
    holdings.check(before)


def test_a_sender_forgets_receivers_that_have_left() -> None:
    def links() -> int:
        gc.collect()
        return sum(type(one) is Link for one in gc.get_objects())

    counts = []
    with WeightSender("127.0.0.1:0", key=KEY, **NUMPY) as sender:
        for _ in range(8):
            with WeightReceiver(sender.address, key=KEY, **NUMPY) as receiver:
                together(lambda: sender.send(model()), receiver.receive)
            counts.append(links())
        wait_until(lambda: links() <= counts[2])


@pytest.mark.parametrize("state", ["joined", "received", "left"])
def test_objects_that_are_not_closed(state: str) -> None:
    """They are freed with their last reference, without the garbage collector."""

    def session() -> None:
        store = MemoryStore()
        sender = WeightSender(store, **NUMPY)
        receiver = WeightReceiver(store, **NUMPY)
        if state == "joined":
            return
        together(lambda: sender.send(model()), receiver.receive)
        if state == "left":
            target = receiver._follower.target
            assert target is not None
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(target, "commit", lambda _version: 1 / 0)
                *_, error = together(lambda: sender.send(model()), receiver.receive)
            assert isinstance(error, ZeroDivisionError)

    def leave() -> None:
        session()
        if state == "left":  # the tracebacks of its errors refer to each other
            gc.collect()

    gc.collect()
    gc.freeze()  # each collection is of what is made here
    gc.disable()
    before: dict[str, int] = {}
    try:
        for _ in range(6):
            with pytest.warns(ResourceWarning, match="unclosed Weight") as caught:
                leave()
            texts = sorted(str(warning.message).split("'")[0] for warning in caught)
            assert texts == ["unclosed WeightReceiver ", "unclosed WeightSender 0"]
            if not before:
                time.sleep(_ENDS)
                before = holdings.count()
    finally:
        gc.enable()
        gc.unfreeze()
    holdings.check(before)


def test_closed_objects_do_not_warn() -> None:
    store = MemoryStore()
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        sender = WeightSender(store, **NUMPY)
        receiver = WeightReceiver(store, **NUMPY)
        together(lambda: sender.send(model()), receiver.receive)
        sender.close()
        with pytest.raises(SessionClosedError):
            receiver.receive()
    assert [str(warning.message) for warning in caught] == []
