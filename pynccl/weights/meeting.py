"""Joining a session at its address: a TCP address, or a store that contains it."""

from __future__ import annotations

import socket
import ssl
import time

from pynccl._internal.sockets import connect, creation, track
from pynccl.store import Store
from pynccl.weights import messages
from pynccl.weights.errors import WeightsError
from pynccl.weights.handshake import connect_side
from pynccl.weights.keys import Trust, read_local_key
from pynccl.weights.wire import Deadline, Link, LinkLostError

__all__ = ["STORE_KEY", "check_address", "join", "own_host", "split_address"]

STORE_KEY = "pynccl/weights"
_STEP = 0.05  # seconds between two attempts
_TRY = 5.0  # seconds for connecting to an address of a store


def join(
    address: str | Store, hello: messages.Hello, trust: Trust, deadline: Deadline, timeout: float
) -> Link:
    """Join the session at an address, and return a link of that timeout to sender 0.

    The member takes part from the next version on.

    Raises:
        TimeoutError: no sender listened before the deadline.
        PermissionError: the listening process has a different key.
        WeightsError: the sender refuses this member.
        ssl.SSLCertVerificationError: the listening process has no certificate for that name.
    """
    while True:
        failure: OSError
        try:
            place, key = _look_up(address, trust.key)
        except LookupError as error:
            failure = TimeoutError(str(error))
        else:
            # A restarted sender writes a new address and key to the store.
            limit = deadline if isinstance(address, str) else deadline.within(_TRY)
            try:
                return _enter(split_address(place), hello, trust._replace(key=key), limit, timeout)
            except ssl.SSLCertVerificationError:
                raise
            except PermissionError as error:
                if trust.key is not None and isinstance(address, str):
                    raise
                failure = error
            except OSError as error:
                failure = TimeoutError(f"no sender listens at {place}: {error}")
        if deadline.is_over():
            raise failure
        left = deadline.left()
        time.sleep(_STEP if left is None else min(_STEP, left))


def _look_up(address: str | Store, key: str | None) -> tuple[str, str]:
    """The address and the key.

    Raises:
        LookupError: they do not exist yet.
        ValueError: the session in the store has a key that the user has not passed.
    """
    if isinstance(address, str):
        found = read_local_key(split_address(address)[1]) if key is None else key
        if found is None:
            raise LookupError(f"no sender listens at {address} with a key of this user")
        return address, found
    if not address.check([STORE_KEY]):
        raise LookupError("the sender has not written its address to the store")
    place, _, in_store = address.get(STORE_KEY).decode().partition(" ")
    if not in_store and key is None:
        raise ValueError(
            "key: the session uses a key that is not in the store, or none: pass the key= or "
            "insecure=True of its sender"
        )
    return place, key or in_store


def _enter(
    place: tuple[str, int], hello: messages.Hello, trust: Trust, deadline: Deadline, timeout: float
) -> Link:
    sock = connect(*place, lambda: _left(deadline))
    try:
        if trust.tls is not None:
            with creation():
                sock = trust.tls.wrap_socket(
                    sock, server_hostname=place[0], do_handshake_on_connect=False
                )
                track(sock)
            sock.do_handshake()
        connect_side(sock, trust.key or "", deadline)
        link = Link(sock, messages.FROM_LEADER, timeout)
        link.name = "sender 0"
        link.send(hello)
        answer = link.receive(deadline)
        if isinstance(answer, messages.Refused):
            raise WeightsError(answer.reason)
        if not isinstance(answer, messages.Welcome):
            raise LinkLostError("sender 0 does not answer the hello")
    except BaseException:
        sock.close()
        raise
    return link


def _left(deadline: Deadline) -> float | None:
    """The seconds for connecting to an address: a few even after the deadline."""
    left = deadline.left()
    return None if left is None else max(left, _STEP)


def check_address(address: object, *, listens: bool = False) -> None:
    """Raise TypeError or ValueError if it is neither an address nor a store.

    Port 0, any free port, is only for the member that listens.
    """
    if isinstance(address, str):
        split_address(address, 0 if listens else 1)
    elif not all(hasattr(address, method) for method in ("set", "get", "check")):
        raise TypeError(f"address: expected 'host:port' or a store, got {address!r}")


def split_address(address: str, least: int = 1) -> tuple[str, int]:
    """The host and the port, which is at least the given number."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon or not port.isdecimal() or not least <= int(port) < 1 << 16:
        raise ValueError(f"address: {address!r} is not 'host:port'")
    return host.strip("[]"), int(port)


def own_host() -> str:
    """An address of this machine that others can reach; the loopback address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
