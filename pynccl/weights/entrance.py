"""The entrance of a session: the address at which sender 0 listens, and the threads that accept
connections and read their hello.

They also work between versions, so a starting receiver need not wait for the next one. Both the
number of connections without a proof and the time of each are limited, so no process can stall a
join.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time

from pynccl._internal.sockets import creation, track
from pynccl.store import Store
from pynccl.weights import messages
from pynccl.weights.handshake import listen_side
from pynccl.weights.keys import INSECURE, LocalKey, Trust, new_key
from pynccl.weights.meeting import STORE_KEY, own_host, split_address
from pynccl.weights.wire import LONGEST, Deadline, Link, post_all, shut_down

__all__ = ["Entrance"]

_MOST_UNPROVEN = 128  # connections
_TO_PROVE = 2.0  # seconds, while there is room for connections
_TO_PROVE_WITHOUT_ROOM = 0.1  # a member retries
_TO_SAY_HELLO = 30.0  # seconds
_LONGEST_HELLO = 1 << 26  # bytes


class Entrance:
    """Accepts the other members of a session.

    Args:
        address: "host:port", where port 0 is any free port; or a store, to which the address is
            written.
        trust: the key and TLS. Without a key, a new one is generated and written to the store, or
            to a file of this user.
        senders: the number of senders.
        timeout: of the links.

    Attributes:
        address: "host:port" to connect to.
        key: the key that others must pass; None if they find it by themselves, or need none.
    """

    def __init__(self, address: str | Store, trust: Trust, senders: int, timeout: float) -> None:
        host, port = split_address(address, 0) if isinstance(address, str) else (own_host(), 0)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with creation():
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
            track(self._listener)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.key = None if trust.key == INSECURE else trust.key
        self._local: LocalKey | None = None
        self._key = trust.key or ""
        self._tls = trust.tls
        self._senders = senders
        self._timeout = timeout
        try:
            if not isinstance(address, str):
                in_store = "" if trust.key is not None else new_key()
                address.set(STORE_KEY, f"{self.address} {in_store}")
                self._key = self._key or in_store
            elif trust.key is None:
                self._local = LocalKey(port)
                self._key = self._local.key
        except BaseException:
            self._listener.close()
            raise
        self._numbers: set[int] = set()  # of the senders that have joined
        self._unproven: dict[socket.socket, float] = {}  # when each was accepted
        self._proven: set[Link] = set()  # those that have not sent a hello
        self._arrived: list[tuple[Link, messages.Hello]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="pynccl-weights-join", daemon=True)
        self._thread.start()

    def arrived(self, deadline: Deadline) -> list[tuple[Link, messages.Hello]]:
        """The members that joined since the last call; waits for one until the deadline."""
        with self._changed:
            while not self._arrived and not self._is_closed and not deadline.is_over():
                self._changed.wait(deadline.left())
            arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        """Stop accepting connections."""
        self._is_closed = True
        shut_down(self._listener)
        if threading.current_thread() is not self._thread:  # the garbage collector may run on it
            self._thread.join(5)
        if self._local is not None:
            self._local.remove()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._accept()
            except (OSError, ValueError, RuntimeError):
                if not self._is_closed:  # the connection is gone, or no descriptor is free
                    time.sleep(0.05)
        self._listener.close()
        with self._changed:
            for sock in self._unproven:
                shut_down(sock)
            for link in self._proven:
                link.shut_down()
            for link, _ in self._arrived:
                link.close()
            self._arrived = []
            self._changed.notify_all()

    def _accept(self) -> None:
        poll = select.poll()  # select() only supports descriptors below 1024
        poll.register(self._listener, select.POLLIN)
        poll.poll()
        with creation():
            sock, _ = self._listener.accept()
            track(sock)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                track(sock)
        self._make_room()
        with self._changed:
            self._unproven[sock] = time.monotonic()
        threading.Thread(
            target=self._greet, args=(sock,), name="pynccl-weights-hello", daemon=True
        ).start()

    def _make_room(self) -> None:
        """Close the oldest connection if there are too many, after it has had some time."""
        while not self._is_closed:
            with self._changed:
                if len(self._unproven) < _MOST_UNPROVEN:
                    return
                oldest, since = next(iter(self._unproven.items()))
                if time.monotonic() - since > _TO_PROVE_WITHOUT_ROOM:
                    del self._unproven[oldest]
                    shut_down(oldest)
                    return
            time.sleep(0.01)

    def _greet(self, sock: socket.socket) -> None:
        """Check the proof of a connection and read its hello."""
        try:
            deadline = Deadline(_TO_PROVE)
            if isinstance(sock, ssl.SSLSocket):
                sock.settimeout(deadline.left())
                sock.do_handshake()
            listen_side(sock, self._key, deadline)
            link = Link(sock, messages.HELLOS, self._timeout, longest=_LONGEST_HELLO)
            with self._changed:
                self._proven.add(link)
                self._unproven.pop(sock, None)
            try:
                self._admit(link, link.receive(Deadline(_TO_SAY_HELLO)))
            finally:
                with self._changed:
                    self._proven.discard(link)
        except (OSError, ValueError):
            sock.close()
            with self._changed:
                self._unproven.pop(sock, None)

    def _admit(self, link: Link, hello: messages.Message) -> None:
        with self._changed:
            if self._is_closed or not isinstance(hello, messages.Hello):
                link.close()
                return
            if isinstance(hello, messages.SenderHello):
                if hello.number >= self._senders or hello.number in self._numbers:
                    reason = (
                        f"rank: sender {hello.number} has already joined, or is not one of the "
                        f"{self._senders} senders"
                    )
                    post_all([link], messages.Refused(reason, []))
                    link.close()
                    return
                self._numbers.add(hello.number)
                link.types = messages.FROM_SENDERS
            else:
                link.types = messages.FROM_RECEIVERS
            link.longest = LONGEST
            self._arrived.append((link, hello))
            post_all([link], messages.Welcome())
            self._changed.notify_all()
