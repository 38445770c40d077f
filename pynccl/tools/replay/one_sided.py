"""One-sided operations of a replay: signals, where puts read and write, and the final windows."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.replay.layout import Layout
from pynccl.tools.replay.model import EARLY, FULL, Recorded, ReplayError
from pynccl.tools.replay.program import Op, Program
from pynccl.tools.trace.model import Operation, Signal, Wait, Window
from pynccl.tools.trace.shape import ITEMSIZES

__all__ = ["ONE_SIDED", "Windows", "add_signals", "excess", "expect_puts", "trim"]

ONE_SIDED = frozenset(("put_signal", "signal", "wait_signal"))


# --- signals


class _Key(NamedTuple):
    """The key by which signals are counted; ranks are those of the communicator."""

    communicator: str
    sender: int
    receiver: int
    signal: int
    context: int


def _counts(recorded: Recorded) -> tuple[Counter[_Key], Counter[_Key]]:
    """The signals sent and the signals awaited, for senders with a file."""
    sent: Counter[_Key] = Counter()
    waited: Counter[_Key] = Counter()
    for place, process in enumerate(recorded.processes):
        for operation in process.operations:
            if operation.kind not in ONE_SIDED:
                continue
            rank = recorded.comms[operation.communicator].rank_of(place)
            if operation.kind == "wait_signal":
                for key, signal in _waits(recorded, operation, rank):
                    waited[key] += signal.times
            elif operation.peer is not None:
                indexes = operation.signal or 0, operation.context or 0
                sent[_Key(operation.communicator, rank, operation.peer, *indexes)] += 1
    return sent, waited


def _waits(recorded: Recorded, operation: Operation, rank: int) -> Iterator[tuple[_Key, Signal]]:
    missing = recorded.comms[operation.communicator].missing
    for one in operation.signals:
        if one.peer not in missing:
            yield _Key(operation.communicator, one.peer, rank, one.signal, one.context), one


def excess(recorded: Recorded) -> Iterator[tuple[_Key, int, int, Operation]]:
    """Signals that are awaited but were never sent.

    Yields:
        The key, the numbers of signals awaited and sent, and the first wait for more.
    """
    sent, waited = _counts(recorded)
    found = set(waited - sent)
    if not found:
        return
    for place, process in enumerate(recorded.processes):
        so_far: Counter[_Key] = Counter()
        for operation in process.operations:
            if operation.kind != "wait_signal":
                continue
            rank = recorded.comms[operation.communicator].rank_of(place)
            for key, signal in _waits(recorded, operation, rank):
                so_far[key] += signal.times
                if key in found and so_far[key] > sent[key]:
                    found.remove(key)
                    yield key, waited[key], sent[key], operation


def trim(recorded: Recorded) -> None:
    """Drop waits for signals that the sender sent before its recording began or after it was full.

    The first operation of a recording that began late has a sequence number other than 1.
    """
    sent, waited = _counts(recorded)
    early: Counter[_Key] = Counter()  # initial waits to drop
    left: dict[_Key, int] = {}  # waits to keep until the sender's recording was full
    for key, number in (waited - sent).items():
        sender = recorded.processes[recorded.comms[key.communicator].place_of(key.sender)]
        if sender.first.get(key.communicator, 1) > 1:
            early[key] = number
        elif sender.trace.dropped:
            left[key] = sent[key]
    if not early and not left:
        return
    for place, process in enumerate(recorded.processes):
        items: list[Operation | Wait] = []
        dropped: Counter[str] = Counter()
        for item in process.items:
            if not isinstance(item, Operation) or not item.signals:
                items.append(item)
                continue
            signals = []
            rank = recorded.comms[item.communicator].rank_of(place)
            for key, one in _waits(recorded, item, rank):
                before = min(one.times, early[key])
                kept = min(one.times - before, left.get(key, one.times))
                early[key] -= before
                if key in left:
                    left[key] -= kept
                dropped[EARLY] += before
                dropped[FULL] += one.times - before - kept
                if kept:
                    signals.append(one._replace(times=kept))
            if signals:
                items.append(dataclasses.replace(item, signals=tuple(signals)))
        process.items = items
        for when, number in (+dropped).items():
            recorded.notes.append(
                f"rank {process.rank}: waits for {number} signals {when} are dropped"
            )


def add_signals(recorded: Recorded, programs: Sequence[Program]) -> None:
    """Determine the signals that no operation waits for."""
    numbers = {id: index for index, id in enumerate(recorded.comms)}
    sent, waited = _counts(recorded)
    for key, times in sorted((sent - waited).items()):
        program = programs[recorded.comms[key.communicator].place_of(key.receiver)]
        left = program.signals.setdefault(numbers[key.communicator], [])
        left.append(Signal(key.sender, times, key.signal, key.context))


# --- windows


class Windows:
    """The windows of all ranks, with one memory layout for all of them.

    Args:
        recorded: the recordings.
        scale: factor for sizes.

    Raises:
        ReplayError: a put reads or writes memory outside the recorded windows.
    """

    def __init__(self, recorded: Recorded, scale: float) -> None:
        self._recorded = recorded
        self._scale = scale
        self._numbers = {id: index for index, id in enumerate(recorded.comms)}
        self._opened: dict[tuple[str, int], dict[int, Window]] = defaultdict(dict)
        self._indexes: dict[str, tuple[int, int]] = {}
        self._layouts: dict[tuple[str, int], Layout] = {}
        for place, process in enumerate(recorded.processes):
            for window in process.windows:
                if window.communicator in recorded.comms:
                    self._opened[window.communicator, window.number][place] = window
        self._lay_out()

    def _lay_out(self) -> None:
        parts: dict[tuple[str, int], list[tuple[int, int, int, int]]] = defaultdict(list)
        for place, process in enumerate(self._recorded.processes):
            for operation in process.operations:
                if operation.kind not in ONE_SIDED:
                    continue
                id = operation.communicator
                self._note_indexes(operation)
                if operation.kind != "put_signal":
                    continue
                size, scaled, item = self._size(operation)
                source = self._source(place, operation)
                offset = operation.sendbuff - source.address
                parts[id, source.number].append((offset, size, scaled, item))
                target = id, operation.window or 0
                parts[target].append((operation.offset or 0, size, scaled, item))
        for key, opened in self._opened.items():
            nbytes = max(window.nbytes for window in opened.values())
            parts[key].append((0, nbytes, max(1, int(nbytes * self._scale)), 1))
            self._layouts[key] = Layout(parts[key], self._scale)

    def _size(self, operation: Operation) -> tuple[int, int, int]:
        """The recorded bytes of a put, the replayed bytes, and the bytes of an element."""
        item = ITEMSIZES.get(operation.dtype, 1)
        count = max(1, int(operation.count * self._scale)) if operation.count else 0
        return operation.count * item, count * item, item

    def _note_indexes(self, operation: Operation) -> None:
        signals, contexts = self._indexes.get(operation.communicator, (1, 1))
        used = [(operation.signal or 0, operation.context or 0)]
        used += [(one.signal, one.context) for one in operation.signals]
        for signal, context in used:
            signals, contexts = max(signals, signal + 1), max(contexts, context + 1)
        self._indexes[operation.communicator] = signals, contexts

    def _source(self, place: int, operation: Operation) -> Window:
        """The local window that a put reads.

        Memory may be registered again. Among several windows, it is one that was open together with
        the target, and when the put was called. The time of a recorded call is not exact.
        """
        id = operation.communicator
        target = self._opened.get((id, operation.window or 0), {}).get(place)
        end = operation.sendbuff + self._size(operation)[0]
        found = [
            window
            for key, opened in self._opened.items()
            if key[0] == id
            and (window := opened.get(place)) is not None
            and window.address <= operation.sendbuff
            and end <= window.address + window.nbytes
            and target is not None
            and _overlap(window, target)
        ]
        if not found:
            raise ReplayError(
                f"rank {self._recorded.processes[place].rank}: put_signal with sequence "
                f"{operation.sequence} of communicator {id} uses memory outside the recorded "
                "windows; NCCL requires it to be in a window of the communicator"
            )
        return min(found, key=lambda one: (_distance(one, operation), -one.number))

    def indexes(self, id: str) -> tuple[int, int]:
        """The number of signals and contexts of a communicator."""
        return self._indexes.get(id, (1, 1))

    def sizes(self, place: int) -> dict[tuple[int, int], int]:
        """The bytes of a rank's windows, in the order of registration."""
        sizes: dict[tuple[int, int], int] = {}
        for (id, number), opened in self._opened.items():
            if id not in self._indexes or place not in self._recorded.comms[id].ranks:
                continue  # without one-sided operations windows are not used
            own = opened.get(place)
            exact = self._scale == 1 and own is not None
            nbytes = own.nbytes if exact and own else self._layouts[id, number].nbytes
            sizes[self._numbers[id], number] = nbytes
        return dict(sorted(sizes.items()))

    def place(self, place: int, op: Op) -> None:
        """Set the offsets that a put reads and writes."""
        operation = op.recorded
        id = operation.communicator
        source = self._source(place, operation)
        op.home, op.window = source.number, operation.window
        op.send = self._layouts[id, source.number][operation.sendbuff - source.address]
        op.recv = self._layouts[id, operation.window or 0][operation.offset or 0]


def _overlap(one: Window, other: Window) -> bool:
    """Whether two windows were open at the same time."""
    return (one.closed is None or other.opened <= one.closed) and (
        other.closed is None or one.opened <= other.closed
    )


def _distance(window: Window, operation: Operation) -> int:
    """The nanoseconds between a call and the period in which a window was open."""
    late = 0 if window.closed is None else operation.called - window.closed
    return max(0, window.opened - operation.called, late)


# --- contents of windows


@dataclass
class _Write:
    """The puts of a rank to one range, or the sources of its own puts in one range.

    Attributes:
        writer: the rank; None if this rank fills sources.
        last: number of the last put.
        queues: the streams and contexts, between which puts are unordered.
        ops: all of the sources, the last of the puts.
    """

    begin: int
    end: int
    writer: int | None
    last: int = -1
    queues: set[tuple[int, int]] = field(default_factory=set)
    ops: list[Op] = field(default_factory=list)


_Window = tuple[int, int, int]  # the communicator, the rank, the number


def expect_puts(programs: Sequence[Program], comms: Sequence[tuple[int, ...]]) -> None:
    """Determine the expected contents of the parts of windows that only one rank writes."""
    writes: dict[_Window, dict[tuple[int, int, int | None], _Write]] = defaultdict(dict)
    count = 0
    for program in programs:
        ranks = {member.number: member.rank for member in program.members}
        for op in program.operations:
            if op.kind != "put_signal" or op.peer is None or not op.sent:
                continue
            rank, nbytes, count = ranks[op.comm], op.sent * op.itemsize, count + 1
            own, target = (op.comm, rank, op.home or 0), (op.comm, op.peer, op.window or 0)
            filled = _at(writes[own], op.send, op.send + nbytes, None)
            filled.ops.append(op)
            put = _at(writes[target], op.recv, op.recv + nbytes, rank)
            put.last, put.ops = count, [op]
            put.queues.add((op.stream, op.recorded.context or 0))
    segments = {key: list(_segments(list(table.values()))) for key, table in writes.items()}
    for one in segments.values():
        for _, _, active in one:
            if any(write.writer is not None for write in active):
                for write in active:
                    if write.writer is None:  # what it reads depends on the time of the peer's put
                        for op in write.ops:
                            op.tainted = True
    for (comm, rank, number), one in segments.items():
        _expect(programs[comms[comm][rank]], number, one)


def _at(
    table: dict[tuple[int, int, int | None], _Write], begin: int, end: int, writer: int | None
) -> _Write:
    return table.setdefault((begin, end, writer), _Write(begin, end, writer))


def _segments(writes: list[_Write]) -> Iterator[tuple[int, int, list[_Write]]]:
    """The parts between all starts and ends, with the writes to each."""
    bounds = sorted({bound for one in writes for bound in (one.begin, one.end)})
    waiting = sorted(writes, key=lambda one: one.begin, reverse=True)
    active: list[_Write] = []
    for begin, end in itertools.pairwise(bounds):
        active = [one for one in active if one.end > begin]
        while waiting and waiting[-1].begin <= begin:
            active.append(waiting.pop())
        if active:
            yield begin, end, active


def _expect(
    program: Program, number: int, segments: Sequence[tuple[int, int, list[_Write]]]
) -> None:
    """Add the regions of a window; adjacent parts with the same last put form one region."""
    regions: list[tuple[int, int, object, _Write | None]] = []
    for begin, end, active in segments:
        writers = {one.writer for one in active}
        if writers == {None}:
            continue
        queues = {queue for one in active for queue in one.queues}
        ordered = len(writers) == len(queues) == 1
        last = max(active, key=lambda one: one.last) if ordered else None
        what: object = frozenset(writers) if last is None else last.last
        joins = bool(regions) and regions[-1][1:3] == (begin, what)
        first = regions.pop()[0] if joins else begin
        regions.append((first, end, what, last))
    program.regions += len(regions)
    for begin, end, what, last in regions:
        if last is None:
            program.shared += isinstance(what, frozenset) and len(what) > 1
            continue
        op = last.ops[-1]
        item = op.itemsize
        first, after = -(-(begin - op.recv) // item), (end - op.recv) // item
        if op.source is None or op.tainted or after <= first or op.recv % item:
            continue  # torch has no unaligned tensors
        program.landed.append(
            dataclasses.replace(
                op,
                peer=last.writer,
                home=number,
                recv=op.recv + first * item,
                count=after - first,
                sent=0,
                received=after - first,
                source=None,
                expected=[op.source.at(first)],
            )
        )
