"""Peers: the exchange of unique ids between two ranks, without the store of the job.

Each process listens on a socket from init_process_group to destroy_process_group. The addresses are
exchanged through the store when the default group is made. Afterwards two ranks need only each
other: one connects to the other's socket and offers the unique ids of their communicators.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import itertools
import json
import os
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.errors import (
    BackendInvalidUsageError,
    BackendRemoteError,
    BackendTimeoutError,
)
from pynccl.sockets import connect, creation, track

__all__ = ["Exchange", "PeerPresence", "Peers"]

_SLICE = 0.2  # seconds between two calls of cancelled()
_CONNECT = 30.0  # seconds for a connection to a machine that does not answer
_PROBE = 1.0  # seconds for a connection that is only to see whether a rank is there
_BACKLOG = 4096  # connections that are not read yet
_TOKEN = 16  # bytes
_LONGEST = 1 << 16  # bytes of an offer
_ACCEPTED = b"\1"
_INVALID_USAGE, _REMOTE_ERROR, _TIMEOUT = 5, 6, 8  # ncclResult_t


class _Address(NamedTuple):
    """Where a rank listens.

    Attributes:
        machine: its machine and network; ranks with the same value reach each other by loopback.
        host: the name or address by which other machines reach it.
        port: of its socket.
        token: random bytes as hexadecimal digits; an offer to this rank begins with them.
    """

    machine: str
    host: str
    port: int
    token: str


class Exchange:
    """An exchange of one value between this rank and another.

    Args:
        name: the same on both ranks; no other exchange of the two has it at the same time.
        kind: the operation that needs the value, for messages.
        peer: the global rank of the other.
        timeout: seconds to wait for the other.
        cancelled: polled; once it returns True the wait ends.
    """

    def __init__(
        self, name: str, kind: str, peer: int, timeout: float, cancelled: Callable[[], bool]
    ) -> None:
        self.name = name
        self.kind = kind
        self.peer = peer
        self.timeout = timeout
        self.cancelled = cancelled
        self._until = time.monotonic() + timeout

    def next_slice(self, rank: int) -> float:
        """How many seconds to wait before the next call.

        Args:
            rank: this one, for messages.

        Raises:
            BackendTimeoutError: the time is over.
            BackendInvalidUsageError: the exchange was cancelled.
        """
        if self.cancelled():
            raise BackendInvalidUsageError(
                f"{self.kind} on rank {rank}: its group ended before rank {self.peer} took part",
                _INVALID_USAGE,
                self.kind,
                rank,
            )
        left = self._until - time.monotonic()
        if left <= 0:
            raise BackendTimeoutError(
                f"{self.kind} on rank {rank}: Timed out waiting {self.timeout:g} seconds for rank "
                f"{self.peer}, which has not called the operation that belongs to it",
                _TIMEOUT,
                self.kind,
                rank,
            )
        return min(left, _SLICE)


class _Offer(NamedTuple):
    """A value that another rank offers, and its connection, on which it waits for an answer."""

    value: bytes
    connection: socket.socket


class Peers:
    """The addresses of the ranks, and this rank's socket.

    Args:
        rank: this process's global rank.
        store: of the job; leads to the address by which other machines reach this one.
        loopback: whether all ranks are on this machine.
    """

    def __init__(self, rank: int, store: Store, *, loopback: bool) -> None:
        self._rank = rank
        self._token = secrets.token_bytes(_TOKEN)
        with creation():
            listener = _listen(loopback)
            track(listener)
        host = "127.0.0.1" if loopback else _own_host(store)
        port = listener.getsockname()[1]
        self._own = _Address(_machine(), host, port, self._token.hex())
        self._addresses: list[_Address] = []
        # What follows belongs to the thread that polls; the offers are changed under the lock.
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._offers: dict[tuple[int, str], list[_Offer]] = {}
        self._changed = threading.Condition()
        self._polling = False
        self._closed = False

    @property
    def address(self) -> tuple[str | int, ...]:
        """Of this rank, for the exchange through the store."""
        return self._own

    def set_addresses(self, addresses: Iterable[Iterable[Any]]) -> None:
        """Set the addresses of all ranks, in their order."""
        self._addresses = [_Address(*address) for address in addresses]

    def offer(self, exchange: Exchange, value: bytes) -> None:
        """Send a value to the other rank, and wait until it has called accept().

        Raises:
            BackendRemoteError: the other rank has died or has left the job.
            BackendTimeoutError: it did not come in time.
            BackendInvalidUsageError: the exchange was cancelled.
        """
        text = json.dumps([self._rank, exchange.name, value.hex()]).encode()
        token = bytes.fromhex(self._addresses[exchange.peer].token)
        with self._connect(exchange) as connection:
            try:
                connection.sendall(token + len(text).to_bytes(4, "big") + text)
                while not _readable(connection, exchange.next_slice(self._rank)):
                    pass
                accepted = connection.recv(1) == _ACCEPTED
                connection.sendall(_ACCEPTED)
            except OSError:
                accepted = False
        if not accepted:
            raise self._gone(exchange, "it has closed the connection")

    def accept(self, exchange: Exchange) -> bytes:
        """Wait for the value that the other rank offers.

        Raises:
            BackendRemoteError: the other rank has died or has left the job.
            BackendTimeoutError: it did not come in time.
            BackendInvalidUsageError: the exchange was cancelled.
        """
        presence: socket.socket | None = None
        try:
            for attempt in itertools.count():
                while (offer := self._take(exchange)) is not None:
                    if self._stands(offer, exchange):
                        return offer.value
                # A connection only to see that the other rank is there. Mostly the offer is faster.
                if attempt > 1 and presence is None:
                    presence = self._connect(exchange)
                if presence is not None and _readable(presence, 0):
                    raise self._gone(exchange, "it has closed the connection")
                self._poll(exchange.next_slice(self._rank), _key(exchange))
        finally:
            if presence is not None:
                presence.close()
        raise AssertionError("the loop has no end")

    def presence(self, ranks: Sequence[int]) -> PeerPresence:
        """Tells which of these global ranks are there; by their places in the sequence."""
        return PeerPresence(self, ranks)

    def reach(self, rank: int, seconds: float) -> socket.socket:
        """A connection to the socket of a rank."""
        address = self._addresses[rank]
        host = "127.0.0.1" if address.machine == self._own.machine else address.host
        return connect(host, address.port, lambda: seconds)

    def close(self) -> None:
        """Close the sockets: a rank that waits for this one gets an error."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._polling)
        for key in list(self._selector.get_map().values()):
            cast("socket.socket", key.fileobj).close()
        self._selector.close()
        for offers in self._offers.values():
            for offer in offers:
                offer.connection.close()
        self._offers.clear()

    def _connect(self, exchange: Exchange) -> socket.socket:
        """A connection to the other rank's socket."""
        try:
            connection = self.reach(exchange.peer, min(exchange.timeout, _CONNECT))
        except OSError as error:
            raise self._gone(exchange, str(error)) from error
        # A machine that fails closes nothing.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _gone(self, exchange: Exchange, reason: str) -> BackendRemoteError:
        address = self._addresses[exchange.peer]
        return BackendRemoteError(
            f"{exchange.kind} on rank {self._rank}: rank {exchange.peer} has died or has left the "
            f"job: no answer from its socket at {address.host}:{address.port}: {reason}",
            _REMOTE_ERROR,
            exchange.kind,
            self._rank,
        )

    def _take(self, exchange: Exchange) -> _Offer | None:
        """Remove an offer that has come."""
        with self._changed:
            offers = self._offers.pop(_key(exchange), [])
            if len(offers) > 1:
                self._offers[_key(exchange)] = offers[1:]
            return offers[0] if offers else None

    def _stands(self, offer: _Offer, exchange: Exchange) -> bool:
        """Accept an offer; whether the other rank still waits and has confirmed that.

        A process that was killed frees its memory before it closes its sockets, which may take
        long. So an open connection does not show that the other rank is there.
        """
        with offer.connection as connection, contextlib.suppress(OSError):
            connection.sendall(_ACCEPTED)
            while not _readable(connection, exchange.next_slice(self._rank)):
                pass
            return connection.recv(1) == _ACCEPTED
        return False

    def _poll(self, seconds: float, key: tuple[int, str]) -> None:
        """Wait for offers and read them. One thread does; the others wait for theirs, or for it."""
        with self._changed:
            if self._polling or self._closed:
                self._changed.wait_for(
                    lambda: self._offers.get(key) or not (self._polling or self._closed), seconds
                )
                return
            self._polling = True
        try:
            for ready, _ in self._selector.select(seconds):
                if ready.data is None:
                    self._accept_connection(cast("socket.socket", ready.fileobj))
                else:
                    self._read(cast("socket.socket", ready.fileobj), ready.data)
        finally:
            with self._changed:
                self._polling = False
                self._changed.notify_all()

    def _accept_connection(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            with creation():
                connection, _ = listener.accept()
                track(connection)
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, bytearray())

    def _read(self, connection: socket.socket, received: bytearray) -> None:
        """Read a part of an offer. A connection that sends anything else is closed."""
        head = _TOKEN + 4
        try:
            part = connection.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        received += part
        size = head + int.from_bytes(received[_TOKEN:head], "big")
        is_ours = hmac.compare_digest(received[:_TOKEN], self._token[: len(received)])
        if part and is_ours and len(received) <= size <= _LONGEST + head:
            if len(received) < max(size, head + 1):
                return
            self._selector.unregister(connection)
            rank, name, value = json.loads(received[head:])
            connection.setblocking(True)
            offer = _Offer(bytes.fromhex(value), connection)
            with self._changed:
                self._offers.setdefault((rank, name), []).append(offer)
            return
        self._selector.unregister(connection)
        connection.close()


class PeerPresence:
    """Whether ranks are there: each keeps its socket open from init to the end of its process.

    Args:
        peers: has the addresses.
        ranks: the global ranks.
    """

    def __init__(self, peers: Peers, ranks: Sequence[int]) -> None:
        self._peers = peers
        self._ranks = ranks
        self._connections: dict[int, socket.socket | None] = {}

    def gone(self, rank: int, seconds: float = _PROBE) -> str:
        """Why the rank at a place of the sequence is not there; "" where it is, or may be."""
        if rank not in self._connections:
            try:
                limit = min(seconds, _PROBE)
                self._connections[rank] = self._peers.reach(self._ranks[rank], limit)
            except TimeoutError:  # a machine that does not answer: it is not known
                self._connections[rank] = None
            except OSError as error:
                return f"no answer from the socket of global rank {self._ranks[rank]}: {error}"
        connection = self._connections[rank]
        if connection is not None and _readable(connection, 0):
            return f"global rank {self._ranks[rank]} has closed the connection"
        return ""

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            if connection is not None:
                connection.close()


def _key(exchange: Exchange) -> tuple[int, str]:
    return exchange.peer, exchange.name


def _readable(connection: socket.socket, seconds: float) -> bool:
    """Whether there is something to read, or the other side has closed the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _listen(loopback: bool) -> socket.socket:
    if loopback:
        listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    else:
        try:
            listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        except (OSError, ValueError):  # no IPv6
            listener = socket.create_server(("", 0), backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _machine() -> str:
    """Tells this machine, and this network namespace of it, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def _own_host(store: Store) -> str:
    """The name or address by which other machines reach this one.

    It is the address of the interface that leads to the store. On the store's own machine that may
    be loopback: there it is the store's host, by which all others reach the store.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    # The second is an address of RFC 5737 that no machine has: it follows the default route.
    target = store.host if isinstance(store, TCPStore) else "192.0.2.1"
    try:
        family, kind, _, _, there = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return target if isinstance(store, TCPStore) else socket.gethostname()
    is_here = own == there[0] or ipaddress.ip_address(own.partition("%")[0]).is_loopback
    return store.host if isinstance(store, TCPStore) and is_here else str(own)
