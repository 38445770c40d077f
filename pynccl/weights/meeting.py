"""Where the members of a session meet: a TCP address, or a store that has it."""

from __future__ import annotations

import socket
import time

from pynccl.store import Store
from pynccl.weights.wire import Deadline, Link, Listener, connect

__all__ = ["check_address", "join", "listen", "own_host"]

_KEY = "pynccl/weights"
_STEP = 0.02  # seconds between two looks into a store
_TRY = 5.0  # seconds for connecting to an address of a store


def listen(address: str | Store, timeout: float) -> Listener:
    """Listen at an address, or at a free port that the store then has."""
    if isinstance(address, str):
        return Listener(*_split(address, least=0), timeout)
    listener = Listener(own_host(), 0, timeout)
    address.set(_KEY, listener.address)
    return listener


def join(address: str | Store, deadline: Deadline, timeout: float) -> Link:
    """Connect to who listens.

    Raises:
        TimeoutError: nobody did before the deadline.
    """
    if isinstance(address, str):
        return connect(*_split(address), deadline, timeout)
    failure = "the sender has not come to the store"
    while True:
        if address.check([_KEY]):
            left = deadline.left()
            limit = Deadline(_TRY if left is None else min(_TRY, left))
            try:  # again with what the store has then: a sender that started again has another
                return connect(*_split(address.get(_KEY).decode()), limit, timeout)
            except TimeoutError as error:
                failure = str(error)
        if deadline.is_over():
            raise TimeoutError(failure)
        time.sleep(_STEP)


def check_address(address: object, *, listens: bool = False) -> None:
    """Raise TypeError or ValueError where it is neither an address nor a store.

    Args:
        address: of the session.
        listens: port 0 is allowed, a free one.
    """
    if isinstance(address, str):
        _split(address, least=0 if listens else 1)
    elif not all(hasattr(address, method) for method in ("set", "get", "check")):
        raise TypeError(f"address: expected 'host:port' or a store, got {address!r}")


def _split(address: str, *, least: int = 1) -> tuple[str, int]:
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon or not port.isdecimal() or not least <= int(port) < 1 << 16:
        raise ValueError(f"address: {address!r} is not 'host:port'")
    return host.strip("[]"), int(port)


def own_host() -> str:
    """An address of this machine that others reach; the loopback where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
