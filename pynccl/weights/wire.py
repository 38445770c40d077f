"""Control connections: messages over TCP, each preceded by its length.

Only wait() blocks, and it takes an absolute deadline. A peer that sends nothing, a byte at a time,
or too much can therefore not block a caller beyond its deadline.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence

from pynccl.weights.messages import Message, MessageError, MessageTypes, encode, parse

__all__ = [
    "LONGEST",
    "Deadline",
    "Link",
    "LinkLostError",
    "post_all",
    "send_all",
    "shut_down",
    "wait",
]

_HEADER = struct.Struct("!I")
LONGEST = 1 << 28  # bytes of a message
_MOST_UNREAD = 256  # messages; members send a few per version
_READ = 1 << 16  # bytes
_WRITTEN = 1 << 16  # bytes
_LONGEST_WAIT = (1 << 31) - 1  # of poll(), in milliseconds
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LinkLostError(ConnectionError):
    """The other end closed the connection, or violated the protocol."""


class Deadline:
    """A time limit, in seconds from now; None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """The remaining seconds; None without a limit."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        return self.left() == 0

    def within(self, seconds: float) -> Deadline:
        """A deadline that is not later than this one."""
        left = self.left()
        return Deadline(seconds if left is None else min(left, seconds))

    def milliseconds(self) -> int | None:
        """The remaining time as poll() takes it."""
        left = self.left()
        return None if left is None else min(math.ceil(left * 1000), _LONGEST_WAIT)


class Link:
    """A connection to another member.

    Args:
        sock: connected and tracked: see pynccl._internal.sockets.
        types: the messages that the other end may send.
        timeout: seconds that sending a message may take.
        longest: maximum bytes of a received message.
    """

    def __init__(
        self,
        sock: socket.socket,
        types: MessageTypes,
        timeout: float,
        *,
        longest: int = LONGEST,
    ) -> None:
        self.name = ""  # of the member at the other end
        self.lost = ""  # why the connection is lost
        self.types = types
        self.longest = longest
        self._timeout = timeout
        self._socket = sock
        self._received = bytearray()
        self._unread: deque[Message] = deque()
        self._unsent = bytearray()  # preserved if a wait is interrupted, so messages stay whole
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The death of a machine is detected within a minute, even if nothing is sent.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("KEEPIDLE", 20), ("KEEPINTVL", 10), ("KEEPCNT", 3)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether flush() has data to send."""
        return bool(self._unsent)

    def post(self, message: Message) -> None:
        """Append a message to the data that flush() sends."""
        data = encode(message)
        self._unsent += _HEADER.pack(len(data)) + data

    def flush(self) -> bool:
        """Send as much as possible without waiting; return whether everything was sent."""
        while self._unsent and not self.lost:
            try:
                sent = self._socket.send(bytes(self._unsent[:_WRITTEN]))
            except _WOULD_BLOCK:
                return False
            except (OSError, ValueError) as error:
                self._read()  # a message may contain the reason
                self.lose(str(error))
            else:
                del self._unsent[:sent]
        return True

    def send(self, message: Message) -> None:
        """Send a message within the link's timeout.

        Raises:
            LinkLostError: the other end closed the connection, or does not read.
        """
        send_all([(self, message)], Deadline(self._timeout))
        if self.lost:
            raise LinkLostError(f"{self.name}: {self.lost}")

    def receive(self, deadline: Deadline) -> Message:
        """Receive the next message.

        Raises:
            LinkLostError: the other end closed the connection, or violated the protocol.
            TimeoutError: no complete message arrived before the deadline. It may still arrive.
        """
        while True:
            if (message := self.next()) is not None:
                return message
            if self.lost:
                raise LinkLostError(f"{self.name}: {self.lost}")
            if deadline.is_over():
                raise TimeoutError("it does not answer")
            wait([self], deadline)

    def next(self) -> Message | None:
        """The next message, if it has arrived."""
        self.flush()
        if not self._unread:
            self._read()
        return self._unread.popleft() if self._unread else None

    def unread(self) -> Sequence[Message]:
        """The messages that have arrived and that next() will return."""
        self._read()
        return self._unread

    def lose(self, reason: str) -> None:
        """Give up the connection; messages that have arrived can still be read."""
        self.lost = self.lost or reason or "lost"
        self._received.clear()
        self._unsent.clear()
        self._socket.close()

    def shut_down(self) -> None:
        """Close the link from another thread, whose wait for it ends."""
        shut_down(self._socket)

    def close(self) -> None:
        self.lose("the connection is closed")
        self._unread.clear()

    def _read(self) -> None:
        """Read what has arrived, without waiting."""
        if self.lost:
            return
        try:
            data = self._socket.recv(_READ)
            if isinstance(self._socket, ssl.SSLSocket):
                while pending := self._socket.pending():  # poll() does not report it
                    data += self._socket.recv(pending)
        except _WOULD_BLOCK:
            return
        except (OSError, ValueError) as error:
            self.lose(str(error))
            return
        if not data:
            self.lose("the connection is closed")
            return
        self._received += data
        self._parse()

    def _parse(self) -> None:
        begin = 0
        while len(self._received) - begin >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._received, begin)
            if size > self.longest:
                self.lose(f"a message of {size} bytes")
                return
            end = begin + _HEADER.size + size
            if len(self._received) < end:
                break
            try:
                message = parse(self._received[begin + _HEADER.size : end], self.types)
            except MessageError as error:
                self.lose(f"not a message: {error}")
                return
            self._unread.append(message)
            if len(self._unread) > _MOST_UNREAD:
                self.lose(f"more than {_MOST_UNREAD} unread messages")
                return
            begin = end
        del self._received[:begin]


def shut_down(sock: socket.socket) -> None:
    """End the waits of other threads for a socket."""
    with contextlib.suppress(OSError):  # SSLSocket.shutdown() is not safe beside a read
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def wait(links: Iterable[Link], deadline: Deadline, *, to_send: bool = False) -> None:
    """Wait until one of several links can be read or written, or until the deadline."""
    poll = select.poll()  # select() only supports descriptors below 1024
    for link in links:
        if link.lost:
            return
        events = 0 if to_send else select.POLLIN
        poll.register(link, events | (select.POLLOUT if link.has_unsent else 0))
    poll.poll(deadline.milliseconds())


def post_all(links: Iterable[Link], message: Message) -> None:
    """Send a message to several links without waiting; the remainder is sent later."""
    for link in links:
        link.post(message)
        link.flush()


def send_all(messages: Iterable[tuple[Link, Message]], deadline: Deadline) -> list[Link]:
    """Send messages to several links at the same time.

    Returns:
        The links that are lost, including those that did not read their message before the
        deadline.
    """
    links = []
    for link, message in messages:
        link.post(message)
        links.append(link)
    waiting = [link for link in links if not link.flush()]
    while waiting and not deadline.is_over():
        wait(waiting, deadline, to_send=True)
        waiting = [link for link in waiting if not link.flush()]
    for link in waiting:
        link.lose("it does not read")
    return [link for link in links if link.lost]
