"""A process without the key can neither read nor change anything. A member that violates the
protocol, floods, or does not answer loses its own connection; the others get the version in time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl.weights import PeerLostError, WeightReceiver, WeightSender, keys
from pynccl.weights.handshake import CONNECTING, prove
from pynccl.weights.messages import (
    HELLOS,
    Checked,
    Commit,
    Committed,
    Failed,
    MessageError,
    Offer,
    SenderHello,
    Sent,
    Stop,
    Stopped,
    Welcome,
    parse,
)
from tests.support.commands import run_command
from tests.weights import peers
from tests.weights.peers import GARBAGE, KEY, frame, hello, proven
from tests.weights.sessions import NUMPY, MemoryStore, together

MODEL = {"w": np.arange(6, dtype=np.float32)}
ALLOWED = 20.0  # seconds; a hang takes longer


def check_version(
    sender: WeightSender, receiver: WeightReceiver, *others: Callable[[], Any]
) -> Any:  # noqa: ANN401
    """Check that the session works beside other calls; return the losses and the results."""
    report, _, *results = together(lambda: sender.send(MODEL), receiver.receive, *others)
    assert not isinstance(report, Exception), report
    assert receiver.version == report.version
    assert (receiver.tensors["w"] == MODEL["w"]).all()
    return (report.lost, *results) if others else report.lost


@pytest.fixture
def session() -> Iterator[tuple[WeightSender, WeightReceiver]]:
    with (
        WeightSender("127.0.0.1:0", key=KEY, **NUMPY) as sender,
        WeightReceiver(sender.address, key=KEY, **NUMPY) as receiver,
    ):
        yield sender, receiver


Session = tuple[WeightSender, WeightReceiver]


# Keys


def test_processes_without_the_key(session: Session) -> None:
    """A hello, a recorded proof, or the sender's own proof does not open the session."""
    sender, receiver = session
    magic, nonce = b"pynccl weights 1", os.urandom(32)
    answers = []
    for data in (frame(hello()), b"\0" * 1000, magic + nonce + b"\0" * 32):
        with peers.connect(sender.address) as stranger:
            stranger.sendall(data)
            answers.append(peers.read(stranger))
    assert [len(answer) for answer in answers] == [0, 0, 64]
    with peers.connect(sender.address) as stranger:
        stranger.sendall(magic + nonce)
        challenge = stranger.recv(64, socket.MSG_WAITALL)
        stranger.sendall(challenge[32:])  # its own proof
        assert peers.read(stranger) == b""
    recorded = prove(KEY, CONNECTING, nonce, challenge[:32])
    with peers.connect(sender.address) as stranger:
        stranger.sendall(magic + nonce)
        assert stranger.recv(64, socket.MSG_WAITALL)[:32] != challenge[:32]
        stranger.sendall(recorded)
        assert peers.read(stranger) == b""
    assert check_version(sender, receiver) == ()


def test_close_ends_the_thread_that_accepts_connections() -> None:
    for _ in range(10):
        before = threading.enumerate()
        with WeightSender("127.0.0.1:0", key=KEY, **NUMPY):
            pass
        left = {thread.name for thread in set(threading.enumerate()).difference(before)}
        assert "pynccl-weights-join" not in left


def test_another_key(session: Session) -> None:
    sender, receiver = session
    with pytest.raises(PermissionError, match="the sender has a different key"):
        WeightReceiver(sender.address, key="x" * 32, **NUMPY)
    with pytest.raises(PermissionError, match="the sender has a different key"):
        WeightReceiver(sender.address, insecure=True, **NUMPY)
    assert check_version(sender, receiver) == ()


def test_reachable_address_requires_a_key() -> None:
    for address in ("0.0.0.0:0", "[::]:0", ":0", "tcp://10.0.0.1:0", "localhost.example:0"):
        with pytest.raises(ValueError, match=r"the session needs a key.*PYNCCL_WEIGHTS_KEY"):
            WeightSender(address)
    with pytest.raises(ValueError, match="the session needs a key"):
        WeightReceiver("trainer:29600")
    with (
        WeightSender("0.0.0.0:0", insecure=True, **NUMPY) as sender,
        WeightReceiver(
            sender.address.replace("0.0.0.0", "127.0.0.1"), insecure=True, **NUMPY
        ) as receiver,
    ):
        assert sender.key is None
        assert check_version(sender, receiver) == ()


@pytest.mark.parametrize("source", ["argument", "file", "environment", "store", "this machine"])
def test_sources_of_keys(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    address: Any = MemoryStore() if source == "store" else "127.0.0.1:0"
    key: str | Path | None = None
    if source == "argument":
        key = KEY
    elif source == "file":
        key = tmp_path / "key"
        key.touch(0o600)
        key.write_text(KEY + "\n")
    elif source == "environment":
        monkeypatch.setenv("PYNCCL_WEIGHTS_KEY", KEY)
    with WeightSender(address, key=key, **NUMPY) as sender:
        files = list(tmp_path.glob("*.key"))
        assert len(files) == (source == "this machine")
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
        where = address if source == "store" else sender.address
        with WeightReceiver(where, key=key, **NUMPY) as receiver:
            assert check_version(sender, receiver) == ()
        assert sender.key == (KEY if source in ("argument", "file", "environment") else None)
    assert not list(tmp_path.glob("*.key"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_files_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        WeightSender("127.0.0.1:0", key=path)


def test_files_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="has mode 0640, so other users can"):
        WeightSender("127.0.0.1:0", key=path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        WeightSender("127.0.0.1:0", key=link)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PermissionError, match="is not a regular file"):
        WeightSender("127.0.0.1:0", key=tmp_path / "pipe")
    path.write_text("short")
    with pytest.raises(ValueError, match="has 5 characters") as caught:
        WeightSender("127.0.0.1:0", key=path)
    assert "short" not in str(caught.value)
    # The file of a local session is checked in the same way.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    local = tmp_path / "pynccl-weights-1.key"
    local.write_text(KEY)
    local.chmod(0o644)
    with pytest.raises(PermissionError, match="has mode 0644"):
        WeightReceiver("127.0.0.1:1", timeout=1)


def test_key_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "pynccl-weights-1.key"
    path.mkdir()
    with pytest.raises(OSError, match=f"^key: {path} cannot be written .* pass key= on all"):
        keys.LocalKey(1)
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"^key: .*missing.* cannot be written .* pass key= on all"):
        keys.LocalKey(1)


def test_the_key_of_a_sender_that_is_not_closed(tmp_path: Path) -> None:
    """Its file does not outlive the process."""
    code = "from pynccl.weights import WeightSender; sender = WeightSender('127.0.0.1:0')"
    code += f"; import os; print(os.listdir({str(tmp_path)!r}))"
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = run_command([sys.executable, "-c", code], Path.cwd(), env, timeout=60)
    assert ".key" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


def test_key_of_a_sender_that_starts_again(session: Session) -> None:
    """A receiver that finds an old key in the store reads it again."""
    store = MemoryStore()
    with WeightSender(store, **NUMPY):
        pass
    old = store.get("pynccl/weights").decode().split()
    store.set("pynccl/weights", f"{session[0].address} {old[1]}")  # another sender has the port
    senders: list[WeightSender] = []
    timer = threading.Timer(0.3, lambda: senders.append(WeightSender(store, **NUMPY)))
    timer.start()
    with WeightReceiver(store, **NUMPY) as receiver:
        timer.join()
        assert check_version(senders[0], receiver) == ()
    senders[0].close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", "/CN=trainer", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(path), "-out", str(tmp_path / "public.pem")]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    path.write_text(path.read_text() + (tmp_path / "public.pem").read_text())
    return path


def test_tls(certificate: Path) -> None:
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate)
    verifying = ssl.create_default_context(cafile=certificate.with_name("public.pem"))
    large = {f"tensor {i}": np.full(3, i, np.float32) for i in range(5000)}  # long messages
    with (
        WeightSender("127.0.0.1:0", key=KEY, tls=own, **NUMPY) as sender,
        WeightReceiver(sender.address, large, key=KEY, tls=verifying, **NUMPY) as receiver,
    ):
        for _ in range(2):
            together(lambda: sender.send(large), receiver.receive)
        assert receiver.version == 2
        with pytest.raises(ssl.SSLCertVerificationError):
            WeightReceiver(sender.address, key=KEY, tls=ssl.create_default_context(), timeout=20)
        with pytest.raises(TimeoutError):  # without TLS
            WeightReceiver(sender.address, key=KEY, timeout=1)
        silent = peers.connect(sender.address)
        report, _ = together(lambda: sender.send(large), receiver.receive)
        assert report.lost == ()
        silent.close()


# Messages


_WRONG_HELLOS = {
    str(wrong): frame(hello(**wrong))
    for wrong in (
        {"name": 1},
        {"name": "x" * 100_000},
        {"wanted": 1},
        {"wanted": [["w"]]},
        {"wanted": [["w", "x", [1], None]]},
        {"wanted": [["w", "float32", [1 << 70], None]]},
        {"wanted": [["w", "float32", [0.5], None]]},
        {"wanted": [["w", "float32", [1] * 65, None]]},
        {"wanted": [["w", "float32", [2], [[1], [3]]]]},
        {"wanted": [["w", "float32", [2], [[0], [1], [2]]]]},
        {"wanted": [["w", "float32", [2], None], ["w", "float32", [2], None]]},
        {"wanted": [[["w"], "float32", [2], None]]},
        {"more": 1},
    )
} | GARBAGE


@pytest.mark.parametrize("data", _WRONG_HELLOS.values(), ids=list(_WRONG_HELLOS))
def test_wrong_hellos(session: Session, data: bytes) -> None:
    sender, receiver = session
    with pytest.raises(MessageError):
        parse(data[4:], HELLOS)
    with proven(sender.address, data) as stranger:
        stranger.shutdown(socket.SHUT_WR)
        assert peers.read(stranger) == b""
    assert check_version(sender, receiver) == ()


@pytest.mark.parametrize("number", [0, 0.5, -1, 1, True, "1", None, 1 << 80])
def test_wrong_numbers_of_senders(session: Session, number: Any) -> None:  # noqa: ANN401
    """There is one sender. Others are refused, and the session continues."""
    sender, receiver = session
    with proven(sender.address, frame({"kind": "SenderHello", "number": number})) as stranger:
        assert b"Welcome" not in peers.read(stranger)
    assert check_version(sender, receiver) == ()


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_of_a_receiver(session: Session, garbage: bytes) -> None:
    """Between versions, and after an attempt has begun."""
    sender, receiver = session
    with proven(sender.address, frame(hello("first"))) as stranger:
        assert isinstance(peers.receive(stranger), Welcome)
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        with proven(sender.address, frame(hello("second"))) as other:
            assert isinstance(peers.receive(other), Welcome)

            def answer() -> None:
                peers.receive(other)
                other.sendall(garbage)
                other.shutdown(socket.SHUT_WR)

            lost, _ = check_version(sender, receiver, answer)
            assert sorted(lost) == ["first", "second"]


def answer_wrongly(receiver: WeightReceiver, kind: type, wrong: bytes) -> None:
    """Replace the messages of a type by other bytes."""
    link = receiver._follower._link
    send = link.send

    def answer(message: Any) -> None:  # noqa: ANN401
        if isinstance(message, kind):
            link._unsent += wrong
            link.flush()
        else:
            send(message)

    link.send = answer  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "wrong",
    [
        *(list(GARBAGE.values())[i] for i in (1, 2, 3)),
        frame({"kind": "Checked", "epoch": 1, "sums": [[99], [1]]}),
        frame({"kind": "Checked", "epoch": 1, "sums": [[0, 0], [1, 1]]}),
        frame({"kind": "Offer", "version": 1, "layout": None, "order": None}),
        frame({"kind": "Sent", "epoch": 1, "sums": [[], []]}),
    ],
)
def test_garbage_for_an_answer(session: Session, wrong: bytes) -> None:
    """After all data has arrived: the receiver is dropped, and the others commit."""
    sender, receiver = session
    with WeightReceiver(sender.address, name="bad", key=KEY, **NUMPY) as bad:
        answer_wrongly(bad, Checked, wrong)
        lost, error = check_version(sender, receiver, bad.receive)
        assert lost == ("bad",)
        assert isinstance(error, PeerLostError)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        GARBAGE["huge"],
        frame({"kind": "Committed", "epoch": True}),
        frame(Committed(0)),
        frame(Failed(1, "it does not acknowledge", own=False)),
        frame(Failed(1, "it cannot commit", own=True)),
    ],
    ids=["silence", "huge", "wrong epoch", "stale", "failed", "own"],
)
def test_receiver_that_does_not_acknowledge(wrong: bytes) -> None:
    """It counts as lost, and the others get the version in time."""
    with (
        WeightSender("127.0.0.1:0", key=KEY, timeout=4.0, library="numpy") as sender,
        WeightReceiver(sender.address, key=KEY, **NUMPY) as receiver,
        WeightReceiver(sender.address, name="bad", key=KEY, **NUMPY) as bad,
    ):
        answer_wrongly(bad, Committed, wrong)
        lost, _ = check_version(sender, receiver, bad.receive)
        assert lost == ("bad",)
        assert bad.version == 1  # it has it


@pytest.mark.parametrize("state", ["offer", "empty offer", "sent"])
def test_garbage_of_a_sender(state: str) -> None:
    """A sender is indispensable, so the session ends with the documented error."""
    store = MemoryStore()
    with (
        WeightSender(store, senders=2, key=KEY, **NUMPY) as sender,
        WeightReceiver(store, key=KEY, **NUMPY) as receiver,
        proven(sender.address, frame(SenderHello(1))) as other,
    ):
        assert isinstance(peers.receive(other), Welcome)
        if state == "offer":
            other.sendall(
                frame({"kind": "Offer", "version": 1, "layout": [[1, 2, 3, 4]], "order": None})
            )
        elif state == "empty offer":
            other.sendall(frame(Offer(1, None, None)))
        else:
            other.sendall(frame(Offer(1, {}, None)))
            other.sendall(frame(Sent(1, {5: 5})))
            other.sendall(b"\xff" * 4)
        sent, received = together(lambda: sender.send(MODEL), receiver.receive)
        assert isinstance(sent, PeerLostError)
        assert "sender 1 is lost" in str(sent)
        assert isinstance(received, PeerLostError)


_BEGIN = {"kind": "Begin", "epoch": 1, "provider": "host"}
_WORLD = {"ids": ["00"], "number": 7, "receivers": 1}
_PLAN = {
    "senders": [[["w", "float32", [1 << 62], None]]],
    "layouts": [None],
    "receivers": [0],
    "bucket_bytes": 4096,
    "direct_bytes": 4096,
    "order": None,
}
LEADERS = {
    **{f"no message: {name}": data for name, data in GARBAGE.items()},
    "another place": frame({**_BEGIN, "plan": None, "world": _WORLD}),
    "endless plan": frame({**_BEGIN, "plan": _PLAN, "world": None}),
    "digests of nothing": frame({**_BEGIN, "plan": None, "world": None})
    + frame({"kind": "Check", "epoch": 1, "digests": ["0" * 16] * 3}),
    "commit of nothing": frame(Commit(1, ["engine"], [])),
}


@pytest.mark.parametrize("data", LEADERS.values(), ids=list(LEADERS))
def test_garbage_of_the_leader(data: bytes) -> None:
    def talk(sock: socket.socket) -> None:
        peers.receive_bytes(sock)
        sock.sendall(frame(Welcome()) + data)
        sock.shutdown(socket.SHUT_WR)
        peers.read(sock)

    with (
        peers.leader(talk) as address,
        WeightReceiver(address, key=KEY, **NUMPY) as receiver,
        pytest.raises(PeerLostError, match="the sender is lost"),
    ):
        receiver.receive(ALLOWED)


# Deadlines


def flooding(sock: socket.socket, data: bytes, pause: float = 0) -> Callable[[], None]:
    """Send data repeatedly until the connection is closed or the returned function is called."""
    stopped = threading.Event()

    def run() -> None:
        try:
            while not stopped.is_set():
                sock.sendall(data)
                stopped.wait(pause)
        except OSError:
            pass

    thread = threading.Thread(target=run)
    thread.start()

    def stop() -> None:
        stopped.set()
        sock.close()
        thread.join()

    return stop


@pytest.mark.parametrize("who", ["stranger", "proven", "member"])
@pytest.mark.parametrize("how", ["flood", "silence", "one byte at a time", "half a message"])
def test_deadlines_of_a_version(who: str, how: str) -> None:
    """Six members delay a version by at most the timeout, and strangers do not delay it."""
    limit = 4.0
    stops = []
    with (
        WeightSender("127.0.0.1:0", key=KEY, timeout=limit, library="numpy") as sender,
        WeightReceiver(sender.address, key=KEY, **NUMPY) as receiver,
    ):
        for number in range(6):
            if who == "stranger":
                sock = peers.connect(sender.address)
                data = b"pynccl weights 1" + b"x" * 32
            elif who == "proven":
                sock = proven(sender.address)
                data = frame({"kind": "Bye"})
            else:
                sock = proven(sender.address, frame(hello(f"member {number}")))
                assert isinstance(peers.receive(sock), Welcome)
                data = frame(Stopped(0))
            if how == "flood":
                stops.append(flooding(sock, data * 100))
            elif how == "one byte at a time":
                stops.append(flooding(sock, b"\0", 0.2))
            else:
                if how == "half a message":
                    sock.sendall(data[: len(data) // 2])
                stops.append(sock.close)
        began = time.monotonic()
        lost = check_version(sender, receiver)
        seconds = time.monotonic() - began
        for stop in stops:
            stop()
    assert seconds < ALLOWED
    assert len(lost) == (6 if who == "member" else 0)


def test_deadline_of_a_receiver_whose_leader_floods() -> None:
    done = threading.Event()

    def talk(sock: socket.socket) -> None:
        peers.receive_bytes(sock)
        sock.sendall(frame(Welcome()))
        threading.Thread(target=peers.read, args=(sock,), daemon=True).start()
        with contextlib.suppress(OSError):
            for _ in range(200):  # 256 unread ones are a violation, and the receiver may be slow
                sock.sendall(frame(Stop(1)))
                time.sleep(0.01)
        done.wait(ALLOWED)

    with (
        peers.leader(talk) as address,
        WeightReceiver(address, key=KEY, **NUMPY) as receiver,
    ):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"no version began within 0\.5 s"):
            receiver.receive(0.5)
        assert time.monotonic() - began < ALLOWED
        done.set()


def test_many_connections_do_not_block_a_member(session: Session) -> None:
    sender, receiver = session
    strangers = [peers.connect(sender.address) for _ in range(300)]
    with WeightReceiver(sender.address, key=KEY, name="late", **NUMPY) as late:
        lost, _ = check_version(sender, receiver, late.receive)
        assert lost == ()
        assert late.version == 1
    for stranger in strangers:
        stranger.close()
