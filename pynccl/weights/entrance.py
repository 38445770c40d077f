"""The entrance of a session: a thread of sender 0 that accepts connections and reads their hello.

It also works between versions, so a starting receiver need not wait for the next one. Both the
number of connections without a proof and the time of each are limited, so no process can stall a
join.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

from pynccl._internal.sockets import creation, track
from pynccl.weights.handshake import ListeningSide
from pynccl.weights.messages import (
    FROM_RECEIVERS,
    FROM_SENDERS,
    HELLOS,
    Hello,
    ReceiverHello,
    Refused,
    SenderHello,
    Welcome,
)
from pynccl.weights.wire import LONGEST, Deadline, Link

__all__ = ["Entrance"]

_MOST_PENDING = 128
_TO_PROVE = 2.0  # seconds, while there is room for connections
_TO_PROVE_WITHOUT_ROOM = 0.1  # a member retries
_TO_SAY_HELLO = 30.0  # seconds
_LONGEST_HELLO = 1 << 26  # bytes
_MOST_ACCEPTED = 64  # in one turn
_LOOK = 0.05  # seconds between two checks of deadlines, while there are connections


class _Proven:
    """A connection that has proved the key, but has not sent a hello."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.deadline = Deadline(_TO_SAY_HELLO)


class Entrance:
    """Accepts the other members of a session.

    Args:
        listener: the listening socket.
        key: of the session.
        senders: the number of senders.
        timeout: of the links.
        tls: a TLS context with this side's certificate; None disables TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        senders: int,
        timeout: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._key = key
        self._senders = senders
        self._timeout = timeout
        self._tls = tls
        self._numbers: set[int] = set()  # of the senders that have joined
        self._pending: list[ListeningSide] = []
        self._proven: list[_Proven] = []
        self._arrived: list[tuple[Link, Hello]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        with creation():
            self._wake, self._sleeper = socket.socketpair()
            for sock in (self._wake, self._sleeper):
                sock.setblocking(False)
                track(sock)
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="pynccl-weights-join", daemon=True)
        self._thread.start()

    def arrived(self, deadline: Deadline) -> list[tuple[Link, Hello]]:
        """The members that joined since the last call; waits for one until the deadline."""
        with self._changed:
            while not self._arrived and not self._is_closed and not deadline.is_over():
                self._changed.wait(deadline.left())
            arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        """Stop accepting connections."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        if threading.current_thread() is not self._thread:  # the garbage collector may run on it
            self._thread.join(5)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._wait()
                self._accept()
                self._prove()
                self._hear()
        finally:
            for sock in (self._listener, self._wake, self._sleeper):
                sock.close()
            for side in self._pending:
                side.sock.close()
            for proven in self._proven:
                proven.link.close()
            with self._changed:
                for link, _ in self._arrived:
                    link.close()
                self._arrived = []
                self._changed.notify_all()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._sleeper, select.POLLIN)
        if len(self._pending) < _MOST_PENDING:
            poll.register(self._listener, select.POLLIN)
        for side in self._pending:
            poll.register(side.sock, select.POLLOUT if side.waits_to_write else select.POLLIN)
        for proven in self._proven:
            poll.register(proven.link, select.POLLIN)
        poll.poll(_LOOK * 1000 if self._pending or self._proven else None)

    def _accept(self) -> None:
        for _ in range(_MOST_ACCEPTED):
            if len(self._pending) >= _MOST_PENDING:
                return
            try:
                with creation():
                    sock, _ = self._listener.accept()
                    track(sock)
                if self._tls is not None:
                    with creation():
                        sock = self._tls.wrap_socket(
                            sock, server_side=True, do_handshake_on_connect=False
                        )
                        track(sock)
            except BlockingIOError:
                return
            except (OSError, ValueError):  # the connection is gone, or no descriptor is free
                time.sleep(_LOOK)
                return
            self._pending.append(ListeningSide(sock, self._key))

    def _prove(self) -> None:
        is_full = len(self._pending) >= _MOST_PENDING
        oldest = time.monotonic() - (_TO_PROVE_WITHOUT_ROOM if is_full else _TO_PROVE)
        pending = []
        for side in self._pending:
            try:
                side.advance()
                if side.is_proven:
                    link = Link(side.sock, HELLOS, self._timeout, longest=_LONGEST_HELLO)
                    self._proven.append(_Proven(link))
                elif side.since > oldest:
                    pending.append(side)
                else:
                    side.sock.close()
            except (OSError, ValueError):
                side.sock.close()
        self._pending = pending

    def _hear(self) -> None:
        waiting = []
        for proven in self._proven:
            link = proven.link
            hello = link.next()
            if isinstance(hello, SenderHello | ReceiverHello):
                self._take(link, hello)
            elif link.lost or proven.deadline.is_over():
                link.close()
            else:
                waiting.append(proven)
        self._proven = waiting[-_MOST_PENDING:]
        for proven in waiting[:-_MOST_PENDING]:
            proven.link.close()

    def _take(self, link: Link, hello: Hello) -> None:
        if isinstance(hello, SenderHello):
            if hello.number >= self._senders or hello.number in self._numbers:
                self._answer(link, Refused(f"there is no place for sender {hello.number}", []))
                link.close()
                return
            self._numbers.add(hello.number)
            link.types = FROM_SENDERS
        else:
            link.types = FROM_RECEIVERS
        link.longest = LONGEST
        with self._changed:
            self._arrived.append((link, hello))
            self._answer(link, Welcome())
            self._changed.notify_all()

    @staticmethod
    def _answer(link: Link, message: Welcome | Refused) -> None:
        link.post(message)
        link.flush()
