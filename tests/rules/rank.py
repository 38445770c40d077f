"""The argument of a probe: library, driver, communicators, and messages between its ranks."""

from __future__ import annotations

import ctypes as c
import mmap
import time
import zlib
from collections.abc import Callable
from typing import Any

from tests.rules.api import Driver, Nccl, UniqueId, configuration

__all__ = ["F32", "SUM", "Board", "Rank", "handle"]

F32, SUM = 7, 0
BAD_DTYPE = 99
_GARBAGE = 0xDEAD000  # the value of a handle before a call
_KEPT: list[c.c_void_p] = []  # NCCL may write a handle after the probe has returned


class Board:
    """Named messages of up to 254 bytes between ranks, in memory shared by their processes."""

    _SLOTS, _BYTES = 4096, 256

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SLOTS * self._BYTES)

    def write(self, name: str, data: bytes = b"") -> None:
        at = self._place(name)
        self._memory[at + 2 : at + 2 + len(data)] = data
        self._memory[at + 1] = len(data)
        self._memory[at] = 1

    def read(self, name: str, seconds: float = 20) -> bytes | None:
        """Wait for a message; None if it has not arrived within ``seconds``."""
        at, end = self._place(name), time.monotonic() + seconds
        while not self._memory[at]:
            if time.monotonic() > end:
                return None
            time.sleep(0.001)
        return self._memory[at + 2 : at + 2 + self._memory[at + 1]]

    def _place(self, name: str) -> int:
        return zlib.crc32(name.encode()) % self._SLOTS * self._BYTES


class Rank:
    """One rank of a probe.

    Attributes:
        rank: its number, from 0.
        size: the number of ranks.
        peer: the other rank of two.
        nccl: the library.
        cuda: the driver.
        device: the rank's device.
    """

    def __init__(self, rank: int, size: int, board: Board, nccl: Nccl, cuda: Driver) -> None:
        self.rank, self.size, self.peer = rank, size, 1 - rank
        self.nccl, self.cuda = nccl, cuda
        self.device = rank % cuda.devices()
        self._board, self._ids, self._meetings = board, 0, 0

    # Messages between ranks

    def tell(self, name: str, data: bytes = b"") -> None:
        """Write a message for the other ranks."""
        self._board.write(name, data)

    def hear(self, name: str, seconds: float = 20) -> bytes | None:
        """Wait for a message from another rank; None if it has not arrived within ``seconds``."""
        return self._board.read(name, seconds)

    def meet(self, seconds: float = 20) -> None:
        """Wait for all ranks."""
        self._meetings += 1
        self.tell(f"meeting {self._meetings} {self.rank}")
        for other in range(self.size):
            self.hear(f"meeting {self._meetings} {other}", seconds)

    def waits(self, call: Callable[[], str], pause: float = 1.5) -> str:
        """Call on rank 0, and on the others once it has returned or after a pause.

        Returns:
            "waits CODE" if the call of rank 0 had not returned by then, else "returns CODE".
        """
        self.meet()
        if self.rank == 0:
            code = call()
            self.tell("returned")
            waited = self.hear("waited") == b"1"
        else:
            waited = self.hear("returned", pause) is None
            self.tell("waited", b"1" if waited else b"0")
            code = call()
        return f"{'waits' if waited else 'returns'} {code}"

    # Communicators

    def id(self) -> UniqueId:
        """The next unique ID, the same on all ranks."""
        self._ids += 1
        made = UniqueId()
        if self.rank == 0:
            self.need(self.nccl.GetUniqueId(c.byref(made)))
            self.tell(f"id {self._ids}", bytes(made))
            return made
        data = self.hear(f"id {self._ids}")
        assert data is not None
        return UniqueId.from_buffer_copy(data)

    def config(self, **fields: object) -> Any:  # noqa: ANN401 - its fields depend on the version
        """A configuration of the library's release."""
        return configuration(self.nccl.version, **fields)

    def init(self, comm: c.c_void_p, size: int = 0, **fields: object) -> str:
        """Call ncclCommInitRankConfig."""
        config = c.byref(self.config(**fields)) if fields else None
        arguments = c.byref(comm), size or self.size, self.id(), self.rank, config
        return self.nccl.CommInitRankConfig(*arguments)

    def create(self, **fields: object) -> c.c_void_p:
        """A ready communicator of all ranks."""
        comm = self.empty()
        self.need(self.init(comm, **fields))
        self.need(self.settle(comm))
        return comm

    def connected(self, **fields: object) -> c.c_void_p:
        """A ready communicator whose ranks an all-reduce has connected."""
        comm = self.create(**fields)
        if (result := self.works(comm)) != "works":
            raise RuntimeError(f"the first operation failed: {result}")
        return comm

    def unready(self) -> c.c_void_p:
        """A non-blocking communicator in progress: its other rank never calls."""
        comm = self.empty()
        code = self.init(comm, 2, blocking=0)
        if code != "inProgress":
            raise RuntimeError(f"the creation returned {code}")
        return comm

    def need(self, code: str) -> None:
        """Fail the probe's preparation unless a code is success or inProgress."""
        if code not in {"success", "inProgress"}:
            raise RuntimeError(f"the preparation of the probe failed: {code}")

    def state(self, comm: c.c_void_p) -> str:
        """The code that ncclCommGetAsyncError reports."""
        error = c.c_int(-1)
        code = self.nccl.CommGetAsyncError(comm, c.byref(error))
        return self.nccl.name(error.value) if code == "success" else f"({code})"

    def settle(self, comm: c.c_void_p, seconds: float = 10) -> str:
        """Wait while a communicator is in progress, and return its state."""
        end = time.monotonic() + seconds
        while (state := self.state(comm)) == "inProgress" and time.monotonic() < end:
            time.sleep(0.002)
        return state

    def in_group(self) -> bool:
        """End the group of this thread; whether there was one."""
        return self.nccl.GroupEnd() != "invalidUsage"

    def split(
        self, comm: c.c_void_p, color: int = 0, key: int = 0, **fields: object
    ) -> tuple[str, c.c_void_p]:
        """Call ncclCommSplit, and return its code and the child."""
        child, config = self.empty(), c.byref(self.config(**fields)) if fields else None
        return self.nccl.CommSplit(comm, color, key, c.byref(child), config), child

    # Operations

    def start(self, comm: c.c_void_p | None, dtype: int = F32) -> tuple[str, c.c_void_p]:
        """Call ncclAllReduce on new memory and a new stream, and return its code and the stream."""
        stream, memory = self.cuda.stream(), self.cuda.memory()
        return self.nccl.AllReduce(memory, memory, 4, dtype, SUM, comm, stream), stream

    def sum(self, comm: c.c_void_p | None, dtype: int = F32) -> str:
        """Call ncclAllReduce, and return its code."""
        return self.start(comm, dtype)[0]

    def refused(self, comm: c.c_void_p) -> str:
        """Call an operation with an invalid argument, and return its code."""
        return self.sum(comm, BAD_DTYPE)

    def works(self, comm: c.c_void_p) -> str:
        """Try an all-reduce: "works", or the failure."""
        stream, memory = self.cuda.stream(), self.cuda.memory()
        self.cuda.write(memory, 1.0)
        code = self.nccl.AllReduce(memory, memory, 4, F32, SUM, comm, stream)
        if code not in {"success", "inProgress"}:
            return code
        if (state := self.settle(comm)) != "success":
            return state
        if (end := self.cuda.finish(stream)) != "done":
            return end
        count = c.c_int()
        self.nccl.CommCount(comm, c.byref(count))
        return "works" if self.cuda.read(memory) == count.value else "wrong result"

    # Calls that involve no other rank

    def count(self, comm: c.c_void_p) -> str:
        """Call ncclCommCount, and return its code."""
        return self.nccl.CommCount(comm, c.byref(c.c_int()))

    def make_operator(self, comm: c.c_void_p) -> str:
        """Call ncclRedOpCreatePreMulSum, and return its code."""
        operator, scalar = c.c_int(), c.c_float(2)
        return self.nccl.RedOpCreatePreMulSum(c.byref(operator), c.byref(scalar), F32, 1, comm)

    def register(self, comm: c.c_void_p) -> str:
        """Call ncclCommRegister on 4096 bytes of new memory, and return its code."""
        return self.nccl.CommRegister(comm, self.cuda.memory(), 4096, c.byref(c.c_void_p()))

    # Handles

    @staticmethod
    def empty() -> c.c_void_p:
        """A handle initialized with a value that no call returns."""
        _KEPT.append(c.c_void_p(_GARBAGE))
        return _KEPT[-1]


def handle(value: c.c_void_p) -> str:
    """The effect of a call on Rank.empty(): "set", "null" or "untouched"."""
    if value.value == _GARBAGE:
        return "untouched"
    return "set" if value.value else "null"
