"""Sockets that are closed in forked children, so that the death of the parent closes the
connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator

__all__ = ["connect", "creation", "track"]

_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_creating = threading.RLock()


def _close_in_child() -> None:
    for sock in list(_open):
        with contextlib.suppress(OSError):
            sock.close()
    _open.clear()
    _creating.release()


os.register_at_fork(
    before=_creating.acquire,
    after_in_parent=_creating.release,
    after_in_child=_close_in_child,
)


@contextlib.contextmanager
def creation() -> Iterator[None]:
    """Prevent threads from forking between the creation of a socket and track()."""
    with _creating:
        yield


def track(sock: socket.socket) -> None:
    """Close a socket in forked children."""
    _open.add(sock)


def connect(host: str, port: int, timeout: Callable[[], float | None]) -> socket.socket:
    """Connect to one of the addresses of a host.

    Args:
        host: the host's name or address.
        port: the port to connect to.
        timeout: returns the time limit in seconds for the next address; None is no limit.

    Returns:
        A tracked socket with that timeout.

    Raises:
        OSError: no connection succeeded; this is the error of the last address.
    """
    failure: OSError = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        with creation():
            sock = socket.socket(family, kind, protocol)
            track(sock)
        try:
            sock.settimeout(timeout())
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
