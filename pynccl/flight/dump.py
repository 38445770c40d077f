"""The dump of one process, as written by ``csrc/watch/flight_dump.cpp``, with checked types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pynccl._internal.typed_json import FieldError, build, load_document

__all__ = ["Call", "Communicator", "Dump", "DumpError", "Record", "load", "parse"]

_FORMAT = "pynccl flight record"
_VERSION = 1


class DumpError(ValueError):
    """A file is not a complete dump, or files do not belong together."""


@dataclass(frozen=True)
class Record:
    """An operation, with the fields of :class:`pynccl.nccl.FlightRecord`.

    Instead of root_or_peer there are root and peer, None if the operation has none, and op, the
    reduction operator, if any. stream and fingerprint are text.
    """

    sequence: int
    operation: str
    number: int | None
    dtype: str
    count: int
    op: str | None
    root: int | None
    peer: int | None
    state: str
    time_created_ns: int
    stream: str
    fingerprint: str

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.operation in ("send", "recv")

    @property
    def is_collective(self) -> bool:
        """Whether all ranks take part."""
        return self.peer is None and self.operation != "wait_signal"

    @property
    def is_open(self) -> bool:
        """Whether it was incomplete."""
        return self.state in ("called", "issued")

    @property
    def arguments(self) -> str:
        """The arguments as text: "(float32, count=4, sum)"."""
        signals = self.operation in ("signal", "wait_signal")
        parts = [] if signals else [self.dtype, f"count={self.count}"]
        parts += [self.op] if self.op is not None else []
        parts += [f"root={self.root}"] if self.root is not None else []
        parts += [f"peer={self.peer}"] if self.peer is not None else []
        return f"({', '.join(parts)})"

    @property
    def signature(self) -> tuple[object, ...]:
        """The values that must be equal on all ranks of a collective."""
        return self.operation, self.dtype, self.count, self.op, self.root


@dataclass(frozen=True)
class Call:
    """A call that had not returned, of a function other than a communication operation.

    Attributes:
        function: its name.
        time_created_ns: when it was called, in nanoseconds since 1970.
    """

    function: str
    time_created_ns: int


@dataclass(frozen=True)
class Communicator:
    """The record of one rank of a communicator.

    Attributes:
        id: its id, equal on all ranks.
        joined: after grow(), its id on the ranks that joined, if this rank knows it.
        parent: the id of the communicator that it was created from.
        name: comm_name, or the name of the process group.
        creator: the function that created it.
        rank: the rank of this process; None if the communicator is not ready.
        nranks: the number of ranks; None if it is not ready.
        device: the GPU; None if it is not ready.
        timeout: the time limit of operations in seconds; None without one.
        failure: the text of the first failure.
        calls: the calls that had not returned.
        collectives: the number of collectives called.
        records: the most recent operations, oldest first.
    """

    id: str
    joined: str | None
    parent: str | None
    name: str | None
    creator: str
    rank: int | None
    nranks: int | None
    device: int | None
    timeout: float | None
    failure: str | None
    calls: list[Call]
    collectives: int
    records: list[Record]


@dataclass(frozen=True)
class Dump:
    """The dump of a process.

    Attributes:
        path: the path of the file.
        reason: why it was written.
        host: the name of the machine.
        pid: the process id.
        rank: the rank of the process (RANK, or that of the default process group), if any.
        time_ns: when it was written, in nanoseconds since 1970.
        communicators: the open communicators.
    """

    path: str
    reason: str
    host: str
    pid: int
    rank: int | None
    time_ns: int
    communicators: list[Communicator]

    def seconds_since(self, time_ns: int) -> float:
        """Return how long before the dump an event happened.

        Args:
            time_ns: the time of the event, in nanoseconds since 1970.

        Returns:
            Seconds, at least 0.
        """
        return max(self.time_ns - time_ns, 0) / 1e9


def load(path: str) -> Dump:
    """Load a file written by nccl.dump_flight_record() or PYNCCL_FLIGHT_FILE.

    Args:
        path: the file.

    Returns:
        The dump.

    Raises:
        DumpError: the file is not a complete dump.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_text()
    except UnicodeDecodeError:
        raise DumpError(f"{path}: this is not a flight record of pynccl, which is text") from None
    return parse(text, path)


def parse(text: str, path: str) -> Dump:
    """Parse the text of a dump.

    Args:
        text: the complete text.
        path: the name of the file, for :attr:`Dump.path` and errors.

    Returns:
        The dump.

    Raises:
        DumpError: the text is not a complete dump.
    """
    try:
        return build(Dump, load_document(text, _FORMAT, _VERSION), path=path)
    except FieldError as error:
        raise DumpError(f"{path}: this is not a flight record of pynccl: {error}") from None
