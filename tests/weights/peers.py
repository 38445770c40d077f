"""Ends of control connections that do what a test says: strangers, and members that misbehave."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pynccl.weights.handshake import ListeningSide, connect_side
from pynccl.weights.messages import FROM_LEADER, Message, encode, parse
from pynccl.weights.wire import Deadline

__all__ = ["GARBAGE", "KEY", "connect", "frame", "hello", "leader", "proven", "read", "receive"]

KEY = "0123456789abcdef" * 4
SOON = 30.0  # seconds

NESTED = b'{"kind":"Bye","x":' + b"[" * 100_000
GARBAGE = {
    "no frame": b"GET / HTTP/1.0\r\n\r\n",
    "huge": struct.pack("!I", 0xFFFFFFFF),
    "nested": struct.pack("!I", len(NESTED)) + NESTED,
    **{
        text.decode(errors="replace"): struct.pack("!I", len(text)) + text
        for text in (
            b"",
            b"[]",
            b"{}",
            b"\xff",
            b"null",
            b'{"kind":1}',
            b'{"kind":["Bye"]}',
            b'{"kind":"Bye","x":1}',
            b'{"kind":"Welcome"}',
            b'{"kind":"Checked"}',
            b'{"kind":"SenderHello","number":0.5}',
            b'{"kind":"SenderHello","number":1e999}',
            b'{"kind":"Checked","epoch":-1,"sums":[[],[]]}',
            b'{"kind":"Checked","epoch":1,"sums":[[0],[]]}',
            b'{"kind":"Checked","epoch":1,"sums":[[0],[18446744073709551616]]}',
            b'{"kind":"Failed","epoch":1,"reason":"\\ud800","own":true}',
            b'{"kind":"Failed","epoch":1,"reason":"x","own":1}',
            b'{"kind":"Stopped","epoch":true}',
            b'{"kind":"Committed","epoch":-1}',
        )
    },
}


def frame(message: Message | dict[str, Any]) -> bytes:
    """A message, or an object of JSON, with its length before it."""
    data = json.dumps(message).encode() if isinstance(message, dict) else encode(message)
    return struct.pack("!I", len(data)) + data


def hello(name: str = "stranger", **fields: object) -> dict[str, Any]:
    """What a receiver says."""
    return {"kind": "ReceiverHello", "name": name, "wanted": None, "keeps_base": True, **fields}


def connect(address: str) -> socket.socket:
    """A connection without a proof."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), SOON)


def proven(address: str, data: bytes = b"") -> socket.socket:
    """A connection that has proved the key, and what it says then."""
    sock = connect(address)
    connect_side(sock, KEY, Deadline(SOON))
    sock.settimeout(SOON)
    sock.sendall(data)
    return sock


def read(sock: socket.socket) -> bytes:
    """All until the other side closes the connection."""
    data = b""
    with contextlib.suppress(OSError):
        while part := sock.recv(1 << 16):
            data += part
    return data


def receive(sock: socket.socket) -> Message:
    """The next message of a leader."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("!I", data[:4])[0]:
        missing = (
            4 - len(data) if len(data) < 4 else 4 + struct.unpack("!I", data[:4])[0] - len(data)
        )
        part = sock.recv(missing)
        if not part:
            raise ConnectionError("closed")
        data += part
    return parse(data[4:], FROM_LEADER)


@contextlib.contextmanager
def leader(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Listen as a sender 0 that knows the key, and call a function with the first connection."""

    def serve() -> None:
        sock, _ = server.accept()
        with sock, contextlib.suppress(OSError):
            side = ListeningSide(sock, KEY)
            while not side.is_proven:
                side.advance()
            sock.settimeout(SOON)
            talk(sock)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(SOON)


def receive_any(sock: socket.socket) -> None:
    """Read a message, whatever it is."""
    (size,) = struct.unpack("!I", sock.recv(4, socket.MSG_WAITALL))
    sock.recv(size, socket.MSG_WAITALL)


def drain(sock: socket.socket) -> None:
    """Read and drop, on a thread, what the other side sends."""
    threading.Thread(target=read, args=(sock,), daemon=True).start()
