"""The handshake of a connection: both sides prove that they know the session's key.

It is the same as that of hostnccl's rendezvous. Nothing else is read from a connection before its
proof.

    connecting: magic, nonce
    listening:  nonce, proof
    connecting: proof
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from typing import Final

from pynccl.weights.wire import Deadline

__all__ = ["CONNECTING", "connect_side", "listen_side", "prove"]

CONNECTING: Final = b"pynccl weights 1, connecting"
_LISTENING = b"pynccl weights 1, listening"
_MAGIC = b"pynccl weights 1"
_NONCE = 32  # bytes
_PROOF = 32


def connect_side(sock: socket.socket, key: str, deadline: Deadline) -> None:
    """Prove that this side knows the key, and check the other side's proof.

    Raises:
        PermissionError: the other side does not know the key.
        OSError: the connection is closed, or the deadline is over.
    """
    nonce = os.urandom(_NONCE)
    _send(sock, _MAGIC + nonce, deadline)
    answer = _receive(sock, _NONCE + _PROOF, deadline)
    other, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, prove(key, _LISTENING, nonce, other)):
        raise PermissionError("key: the sender has a different key")
    _send(sock, prove(key, CONNECTING, nonce, other), deadline)


def listen_side(sock: socket.socket, key: str, deadline: Deadline) -> None:
    """The same for an accepted connection.

    Raises:
        OSError: the connection is closed, does not follow the protocol, or the deadline is over.
    """
    hello = _receive(sock, len(_MAGIC) + _NONCE, deadline)
    if not hello.startswith(_MAGIC):
        raise ConnectionError("not a member of a session")
    connecting, listening = hello[len(_MAGIC) :], os.urandom(_NONCE)
    _send(sock, listening + prove(key, _LISTENING, connecting, listening), deadline)
    expected = prove(key, CONNECTING, connecting, listening)
    if not hmac.compare_digest(_receive(sock, _PROOF, deadline), expected):
        raise ConnectionError("a wrong proof")


def prove(key: str, side: bytes, connecting: bytes, listening: bytes) -> bytes:
    """The proof of a side, from the nonces. Neither side can replay the other's."""
    return hmac.digest(key.encode(), side + connecting + listening, hashlib.sha256)


def _send(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    sock.settimeout(deadline.left())
    sock.sendall(data)


def _receive(sock: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(deadline.left())
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection is closed")
        data += part
    return data
