"""Control connections driven by a test: strangers, and members that violate the protocol."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pynccl.weights.handshake import connect_side, listen_side
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
    """A message or a JSON object, preceded by its length."""
    data = json.dumps(message).encode() if isinstance(message, dict) else encode(message)
    return struct.pack("!I", len(data)) + data


def hello(name: str = "stranger", **fields: object) -> dict[str, Any]:
    """The hello of a receiver."""
    return {"kind": "ReceiverHello", "name": name, "wanted": None, **fields}


def connect(address: str) -> socket.socket:
    """A connection without a proof."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), SOON)


def proven(address: str, data: bytes = b"") -> socket.socket:
    """A connection that has proved the key and sent some data."""
    sock = connect(address)
    connect_side(sock, KEY, Deadline(SOON))
    sock.settimeout(SOON)
    sock.sendall(data)
    return sock


def read(sock: socket.socket) -> bytes:
    """Everything that arrives until the other side closes the connection."""
    data = b""
    with contextlib.suppress(OSError):
        while part := sock.recv(1 << 16):
            data += part
    return data


def receive_bytes(sock: socket.socket) -> bytes:
    """The next message, of any type."""
    data, size = b"", 4
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
        if len(data) == 4:
            size += struct.unpack("!I", data)[0]
    return data[4:]


def receive(sock: socket.socket) -> Message:
    """The next message of a leader."""
    return parse(receive_bytes(sock), FROM_LEADER)


@contextlib.contextmanager
def leader(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Listen as sender 0 with the key, and call a function with the first connection."""

    def serve() -> None:
        sock, _ = server.accept()
        with sock, contextlib.suppress(OSError):
            listen_side(sock, KEY, Deadline(SOON))
            sock.settimeout(SOON)
            talk(sock)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(SOON)
