"""The handshake of a connection: both sides prove that they know the session's key.

It is the same as that of hostnccl's rendezvous. Nothing else is read from a connection before its
proof.

    connecting: magic, nonce
    listening:  nonce, proof
    connecting: proof
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from enum import Enum

from pynccl.weights.keys import (
    CONNECTING,
    LISTENING,
    NONCE_BYTES,
    PROOF_BYTES,
    is_proof,
    prove,
)
from pynccl.weights.wire import Deadline

__all__ = ["ListeningSide", "connect_side"]

_MAGIC = b"pynccl weights 1"


def connect_side(sock: socket.socket, key: str, deadline: Deadline) -> None:
    """Prove that this side knows the key, and check the other side's proof.

    Args:
        sock: connected.
        key: of the session.
        deadline: of the whole handshake.

    Raises:
        PermissionError: the other side does not know the key.
        OSError: the connection is closed, or the deadline is over.
    """
    nonce = os.urandom(NONCE_BYTES)
    sock.settimeout(deadline.left())
    sock.sendall(_MAGIC + nonce)
    answer = b""
    while (missing := NONCE_BYTES + PROOF_BYTES - len(answer)) > 0:
        sock.settimeout(deadline.left())
        part = sock.recv(missing)
        if not part:
            raise ConnectionResetError("the sender has closed the connection")
        answer += part
    other, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not is_proof(proof, prove(key, LISTENING, nonce, other)):
        raise PermissionError("key: the sender has another key")
    sock.settimeout(deadline.left())
    sock.sendall(prove(key, CONNECTING, nonce, other))


class _State(Enum):
    TLS = "TLS is set up"
    HELLO = "the nonce is read"
    ANSWER = "the proof is read"
    PROVEN = "the other side knows the key"


class ListeningSide:
    """A connection whose other side has not yet proved that it knows the key. It never blocks.

    Args:
        sock: accepted, and wrapped if TLS is used.
        key: of the session.

    Attributes:
        sock: the socket that was passed.
        since: when it was accepted.
    """

    def __init__(self, sock: socket.socket, key: str) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.since = time.monotonic()
        self.waits_to_write = False
        self._key = key
        self._state = _State.TLS if isinstance(sock, ssl.SSLSocket) else _State.HELLO
        self._data = b""
        self._expected = b""

    @property
    def is_proven(self) -> bool:
        return self._state is _State.PROVEN

    def advance(self) -> None:
        """Process what has arrived.

        Raises:
            OSError: the connection is closed, or does not follow the protocol.
        """
        self.waits_to_write = False
        try:
            if isinstance(self.sock, ssl.SSLSocket) and self._state is _State.TLS:
                self.sock.do_handshake()
                self._state = _State.HELLO
            if self._state is _State.HELLO and (data := self._read(len(_MAGIC) + NONCE_BYTES)):
                self._challenge(data)
            if self._state is _State.ANSWER and (data := self._read(PROOF_BYTES)):
                if not is_proof(data, self._expected):
                    raise ConnectionError("a wrong proof")
                self._state = _State.PROVEN
        except ssl.SSLWantWriteError:
            self.waits_to_write = True
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return

    def _challenge(self, hello: bytes) -> None:
        if not hello.startswith(_MAGIC):
            raise ConnectionError("not a member of a session")
        connecting, listening = hello[len(_MAGIC) :], os.urandom(NONCE_BYTES)
        self._expected = prove(self._key, CONNECTING, connecting, listening)
        challenge = listening + prove(self._key, LISTENING, connecting, listening)
        if self.sock.send(challenge) != len(challenge):  # the first bytes of a connection
            raise ConnectionError("the other side does not read")
        self._state = _State.ANSWER

    def _read(self, size: int) -> bytes:
        """Read exactly this many bytes; empty if they have not all arrived."""
        part = self.sock.recv(size - len(self._data))
        if not part:
            raise ConnectionResetError("the connection is closed")
        self._data += part
        if len(self._data) < size:
            return b""
        data, self._data = self._data, b""
        return data
