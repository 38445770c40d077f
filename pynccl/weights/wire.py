"""The control connections: messages of JSON over TCP, each with its length before it."""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from typing import Any

__all__ = ["Deadline", "Link", "LinkLostError", "Listener", "Message", "connect"]

Message = dict[str, Any]

_HEADER = struct.Struct("!I")
_LONGEST = 1 << 28  # bytes of a message
_STEP = 0.05  # seconds between two attempts to connect
_PEEKED = 1 << 16  # bytes
_READ = 1 << 20  # bytes
_LONGEST_WAIT = (1 << 31) - 1  # of poll(), in milliseconds


class LinkLostError(ConnectionError):
    """The other end is closed."""


class Deadline:
    """A time limit.

    Args:
        seconds: from now on; None is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """The seconds that are left; None without a limit."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        return self.left() == 0


class Link:
    """A connection to another member.

    Args:
        sock: connected.
        timeout: seconds that sending a message may take.

    Attributes:
        name: of the member at the other end, for messages.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.name = ""
        self._socket = sock
        self._timeout = timeout
        self._data = bytearray()  # of the next message, also where receive() was interrupted
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The end of a machine is noticed within a minute, also where nothing is sent.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("KEEPIDLE", 20), ("KEEPINTVL", 10), ("KEEPCNT", 3)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message.

        Raises:
            LinkLostError: the other end is closed, or does not read.
        """
        data = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:  # a TimeoutError, too
            raise LinkLostError(f"{self.name}: {error}") from error

    def receive(self, deadline: Deadline) -> Message:
        """The next message.

        Raises:
            LinkLostError: the other end is closed, or what it sends is no message.
            TimeoutError: there is no whole one before the deadline. It may still come.
        """
        self._read(_HEADER.size, deadline)
        (size,) = _HEADER.unpack_from(self._data)
        if size > _LONGEST:
            raise LinkLostError(f"{self.name}: a message of {size} bytes")
        end = _HEADER.size + size
        self._read(end, deadline)
        data = self._data[_HEADER.size : end]
        del self._data[:end]
        try:
            message = json.loads(data)
            if not isinstance(message["kind"], str):
                raise TypeError("its kind is not a text")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LinkLostError(f"{self.name}: not a message: {error}") from error
        return dict(message)

    def _read(self, size: int, deadline: Deadline) -> None:
        """Read until there are so many bytes of the next message."""
        while (missing := size - len(self._data)) > 0:
            if not _is_readable(self._socket, deadline.left()):
                raise TimeoutError
            try:
                self._socket.settimeout(self._timeout)
                part = self._socket.recv(min(missing, _READ))
            except OSError as error:
                raise LinkLostError(f"{self.name}: {error}") from error
            if not part:
                raise LinkLostError(f"{self.name}: the connection is closed")
            self._data += part

    def peek(self) -> list[str] | None:
        """The kinds of the messages that wait to be received; None where the end is closed."""
        try:
            if not _is_readable(self._socket, 0):
                return []
            data = self._socket.recv(_PEEKED, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (OSError, ValueError):
            return None
        if not data:
            return None
        data = bytes(self._data) + data
        kinds = []
        while len(data) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(data)
            message = data[_HEADER.size : _HEADER.size + size]
            if len(message) < size:
                break
            try:
                kinds.append(str(json.loads(message)["kind"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                return None  # receive() says that it is lost
            data = data[_HEADER.size + size :]
        return kinds

    def close(self) -> None:
        self._socket.close()


def _is_readable(sock: socket.socket, seconds: float | None) -> bool:
    """Whether there is something to read within a time; None is no limit."""
    poll = select.poll()  # select() is for descriptors below 1024 only
    poll.register(sock, select.POLLIN)
    wait = None if seconds is None else min(math.ceil(seconds * 1000), _LONGEST_WAIT)
    return bool(poll.poll(wait))


class Listener:
    """Accepts the connections of the other members.

    Args:
        host: to listen at.
        port: 0 is any that is free.
        timeout: of the links.

    Attributes:
        address: "host:port" to connect to.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=1024)
        self._timeout = timeout
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def accept(self, seconds: float | None) -> Link | None:
        """The next connection; None where there is none in this time."""
        if not _is_readable(self._socket, seconds):
            return None
        sock, _ = self._socket.accept()
        return Link(sock, self._timeout)

    def close(self) -> None:
        self._socket.close()


def connect(host: str, port: int, deadline: Deadline, timeout: float) -> Link:
    """Connect to a listener, which may come later.

    Raises:
        TimeoutError: it did not come before the deadline.
    """
    while True:
        left = deadline.left()
        try:
            sock = socket.create_connection((host, port), None if left is None else left + _STEP)
            return Link(sock, timeout)
        except OSError as error:
            if deadline.is_over():
                raise TimeoutError(f"nobody listens at {host}:{port}: {error}") from error
            time.sleep(_STEP)
