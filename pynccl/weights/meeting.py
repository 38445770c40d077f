"""The meeting point of a session's members: a TCP address, or a store that contains it."""

from __future__ import annotations

import socket
import ssl
import time

from pynccl._internal.sockets import connect, creation, track
from pynccl.store import Store
from pynccl.weights.entrance import Entrance
from pynccl.weights.errors import WeightsError
from pynccl.weights.handshake import connect_side
from pynccl.weights.keys import INSECURE, LocalKey, Trust, new_key, read_local_key
from pynccl.weights.messages import FROM_LEADER, Hello, Refused, Welcome
from pynccl.weights.wire import Deadline, Link, LinkLostError

__all__ = ["Meeting", "check_address", "join", "own_host"]

_KEY = "pynccl/weights"
_STEP = 0.05  # seconds between two attempts
_TRY = 5.0  # seconds for connecting to an address of a store


class Meeting:
    """The address of a session, at which its sender 0 listens.

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
        entrance: accepts the other members.
    """

    def __init__(
        self,
        address: str | Store,
        trust: Trust,
        senders: int,
        timeout: float,
    ) -> None:
        key = trust.key
        host, port = _split(address, least=0) if isinstance(address, str) else (own_host(), 0)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with creation():
            listener = socket.create_server((host, port), family=family, backlog=1024)
            track(listener)
        self._local: LocalKey | None = None
        self.key = None if key == INSECURE else key
        try:
            port = listener.getsockname()[1]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if isinstance(address, str) and key is None:
                self._local = LocalKey(port)
                key = self._local.key
            elif not isinstance(address, str):
                in_store = "" if key is not None else new_key()
                address.set(_KEY, f"{self.address} {in_store}")
                key = key or in_store
            self.entrance = Entrance(listener, key or "", senders, timeout, trust.tls)
        except BaseException:
            listener.close()
            raise

    def close(self) -> None:
        self.entrance.close()
        if self._local is not None:
            self._local.remove()


def join(
    address: str | Store,
    hello: Hello,
    trust: Trust,
    deadline: Deadline,
    timeout: float,
) -> Link:
    """Join the session at an address.

    Args:
        address: of the session.
        hello: describes the joining member.
        trust: the key and TLS.
        deadline: of the whole call.
        timeout: of the link.

    Returns:
        A link to sender 0, which includes this member from the next version on.

    Raises:
        TimeoutError: no sender listened before the deadline.
        PermissionError: the listening process has another key.
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
            # A restarted sender has another address or key in the store.
            limit = deadline if isinstance(address, str) else deadline.within(_TRY)
            try:
                return _enter(_split(place), hello, trust._replace(key=key), limit, timeout)
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
        found = read_local_key(_split(address)[1]) if key is None else key
        if found is None:
            raise LookupError(f"no sender listens at {address} with a key of this user")
        return address, found
    if not address.check([_KEY]):
        raise LookupError("the sender has not written its address to the store")
    place, _, in_store = address.get(_KEY).decode().partition(" ")
    if not in_store and key is None:
        raise ValueError(
            "key: the session uses a key that is not in the store, or none: pass the key= or "
            "insecure=True of its sender"
        )
    return place, key or in_store


def _enter(
    place: tuple[str, int], hello: Hello, trust: Trust, deadline: Deadline, timeout: float
) -> Link:
    sock = connect(*place, lambda: _left(deadline))
    try:
        if trust.tls is not None:
            sock.settimeout(deadline.left())
            with creation():
                sock = trust.tls.wrap_socket(
                    sock, server_hostname=place[0], do_handshake_on_connect=False
                )
                track(sock)
            sock.do_handshake()
        connect_side(sock, trust.key or "", deadline)
        link = Link(sock, FROM_LEADER, timeout)
        link.name = "sender 0"
    except BaseException:
        sock.close()
        raise
    try:
        link.send(hello)
        try:
            answer = link.receive(deadline)
        except TimeoutError:
            raise TimeoutError("it does not answer") from None
        if isinstance(answer, Refused):
            raise WeightsError(answer.reason)
        if not isinstance(answer, Welcome):
            raise LinkLostError("sender 0 does not answer the hello")
    except BaseException:
        link.close()
        raise
    return link


def _left(deadline: Deadline) -> float | None:
    """The seconds for connecting to an address: a few even after the deadline."""
    left = deadline.left()
    return None if left is None else max(left, _STEP)


def check_address(address: object, *, listens: bool = False) -> None:
    """Raise TypeError or ValueError if it is neither an address nor a store.

    Args:
        address: of the session.
        listens: whether port 0, any free port, is allowed.
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
    """An address of this machine that others can reach; the loopback address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
