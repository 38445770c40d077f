"""A stand-in for the RAS service of an NCCL process: it speaks the protocol of NCCL's client."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Service", "communicator", "lost", "rank", "report"]

_OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, all_reduces: int = 4, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A rank that has reported; fields are those of the rank or of its status."""
    status = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    status.update({name: fields.pop(name) for name in list(fields) if name in status})
    counts = {**dict.fromkeys(_OPERATIONS, 0), "AllReduce": all_reduces}
    return _process(number, status, {"collective_counts": counts, **fields})


def lost(number: int, *, dead: bool = False, silent: bool = True) -> dict[str, Any]:
    """A rank that has not reported."""
    return _process(number, {"unresponsive": silent, "considered_dead": dead}, {})


def _process(number: int, status: object, fields: dict[str, Any]) -> dict[str, Any]:
    place = {"host": "127.0.0.1", "pid": os.getpid(), "cuda_dev": number, "nvml_dev": number}
    return {"rank": number, **place, "status": status, **fields}


def communicator(
    ranks: list[dict[str, Any]],
    missing: list[dict[str, Any]] | None = None,
    size: int = 4,
    name: str = "0x1f3a",
) -> dict[str, Any]:
    """A communicator as the service reports it."""
    return {
        "hash": name,
        "secondary_hash": "0x1:0x2",
        "size": size,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing or []),
        "ranks": ranks,
        "missing_ranks": missing or [],
    }


def report(*communicators: dict[str, Any]) -> bytes:
    """The answer to STATUS."""
    value = {
        "nccl_version": "2.30.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-26 21:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps(value, indent=2).encode()


class Service:
    """Answers clients in a thread.

    Attributes:
        status: returns the answer to STATUS.
        replies: by the first word of a command, the reply in place of NCCL's; None is silence.
        silent: the number of connections that are not answered at all.
        pause: seconds between the bytes of the answer to STATUS.
        times: how often a reply of replies is sent.
        closes: the first word of a command after whose reply the connection is closed.
        commands: the commands received.
    """

    def __init__(
        self, status: bytes | Callable[[], bytes] = b"", listening: socket.socket | None = None
    ) -> None:
        self.status = status if callable(status) else lambda: status
        self.replies: dict[str, bytes | None] = {}
        self.silent = 0
        self.pause = 0.0
        self.times = 1
        self.closes = "STATUS"
        self.commands: list[str] = []
        self._ended = threading.Event()
        self._listening = listening or socket.create_server(("127.0.0.1", 0))
        host, port = self._listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __enter__(self) -> Service:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self.silent > 0:
                self.silent -= 1
                self._ended.wait(60)
                return
            for command in _lines(connection):
                self.commands.append(command)
                word = command.split()[0].upper()
                reply = self.replies[word] if word in self.replies else self._reply(command)
                if reply is None:
                    self._ended.wait(60)
                elif self.pause and word == "STATUS":
                    for byte in reply:
                        connection.sendall(bytes([byte]))
                        time.sleep(self.pause)
                else:
                    for _ in range(self.times if word in self.replies else 1):
                        connection.sendall(reply)
                if word == self.closes:
                    return

    def _reply(self, command: str) -> bytes:
        if command.upper() == "STATUS":
            return self.status()
        if command.upper().startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n"
        if command.upper().startswith(("TIMEOUT ", "SET FORMAT ")):
            return b"OK\n"
        return f"ERROR: Unknown command {command}\n".encode()


def _lines(connection: socket.socket) -> Iterator[str]:
    received = b""
    while more := connection.recv(4096):
        received += more
        while b"\n" in received:
            line, _, received = received.partition(b"\n")
            yield line.decode()
