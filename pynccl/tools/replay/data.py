"""Fills inputs and checks results on hosts with NumPy."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pynccl.tools.replay.model import ReplayError
from pynccl.tools.replay.program import Op
from pynccl.tools.replay.values import SCALAR, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pynccl import nccl

__all__ = ["CHUNK", "STORAGE", "Data", "Differ", "HostData", "Memory", "chunks", "inexact"]

CHUNK = 1 << 18  # elements that are filled or compared at once
STORAGE = {"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}
_EIGHT_BITS = {"float8_e4m3": (4, 3), "float8_e5m2": (5, 2)}  # of exponent and mantissa

# Reports a difference: the operation, the element, its value and the expected value.
Differ = Callable[[Op, int, float, float], None]


class Memory(Protocol):
    """Locates the memory of operations: the arena, or a window."""

    @property
    def ptr(self) -> int: ...


class Data(Protocol):
    """Handles buffers around the operations of a stream."""

    def before(self, stream: Any, ops: Sequence[Op]) -> None:  # noqa: ANN401
        """Enqueue the filling of inputs, and a timestamp."""

    def after(self, stream: Any, ops: Sequence[Op]) -> None:  # noqa: ANN401
        """Enqueue a timestamp, and the comparison of outputs."""

    def compare(self, op: Op) -> None:
        """Compare the output of a completed operation."""

    def durations(self) -> Iterator[tuple[Op, int]]:
        """The nanoseconds of each operation, once all are done."""


def _import_numpy() -> Any:  # noqa: ANN401 - a module
    try:
        import numpy as np
    except ImportError:
        raise ReplayError("a replay on hosts needs NumPy, which is not installed") from None
    return np


def _encoded(number: int, dtype: str) -> int:
    """The code of an integer that an 8-bit float represents exactly."""
    exponent_bits, mantissa_bits = _EIGHT_BITS[dtype]
    sign = 1 << (exponent_bits + mantissa_bits) if number < 0 else 0
    if number == 0:
        return 0
    mantissa, exponent = math.frexp(abs(number))  # abs(number) == mantissa * 2**exponent
    bias = (1 << (exponent_bits - 1)) - 1
    fraction = int((2 * mantissa - 1) * (1 << mantissa_bits))
    return sign | (exponent - 1 + bias) << mantissa_bits | fraction


class Sequences:
    """Numbers of sources, and reductions over them, as arrays in a dtype's storage."""

    def __init__(self) -> None:
        self._np = _import_numpy()
        self._numbers: dict[tuple[object, ...], NDArray[np.int64]] = {}
        self._codes: dict[tuple[object, ...], NDArray[Any]] = {}
        self._tables: dict[str, NDArray[np.uint8]] = {}

    def storage(self, dtype: str) -> Any:  # noqa: ANN401 - a NumPy dtype
        return self._np.dtype(STORAGE.get(dtype, dtype))

    def _tile(self, source: Source) -> NDArray[np.int64]:
        """As much of a source's sequence as a chunk needs from any phase on."""
        key = (source.mode, source.modulus, source.factor)
        if key not in self._numbers:
            np = self._np
            numbers = np.arange(CHUNK + source.modulus, dtype=np.int64) % source.modulus
            if source.mode == "power":
                numbers = 1 + numbers % 2
            elif source.mode == "sign":
                numbers = 1 - 2 * (numbers % 2)
            elif source.mode == "multiple":
                numbers *= source.factor
            self._numbers[key] = numbers
        return self._numbers[key]

    def numbers(self, source: Source, count: int) -> NDArray[np.int64]:
        """The numbers of a source, at most a chunk."""
        return self._tile(source)[source.phase : source.phase + count]

    def codes(self, source: Source, dtype: str, count: int) -> NDArray[Any]:
        key = (source.mode, source.modulus, source.factor, dtype)
        if key not in self._codes:
            self._codes[key] = self.encode(self._tile(source), dtype)
        codes: NDArray[Any] = self._codes[key][source.phase : source.phase + count]
        return codes

    def encode(self, numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
        np = self._np
        if dtype in _EIGHT_BITS:
            if dtype not in self._tables:
                codes = [_encoded(n, dtype) for n in range(-256, 257)]
                self._tables[dtype] = np.array(codes, np.uint8)
            table: NDArray[Any] = self._tables[dtype][numbers.astype(np.int64) + 256]
            return table
        if dtype == "bfloat16":
            bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
            halves: NDArray[Any] = (bits >> 16).astype(np.uint16)
            return halves
        with np.errstate(over="ignore"):
            plain: NDArray[Any] = numbers.astype(self.storage(dtype))
        return plain

    def reduced(self, op: Op, sources: Sequence[Source], count: int) -> NDArray[Any]:
        """The encoded result of a reduction."""
        np = self._np
        combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(
            op.op or "", np.add
        )
        arrays = [self.numbers(source, count) for source in sources]
        with np.errstate(over="ignore"):
            total = functools.reduce(combine, arrays)
            if op.op == "user-defined":
                total = total * SCALAR
        if op.op == "avg":
            total = total // len(sources)  # of floats each term is a multiple of their number
        return self.encode(total, op.dtype)


def chunks(op: Op) -> Iterator[tuple[int, int, list[Source]]]:
    """The chunks of an output: the first element, the number of elements, and their sources.

    There is one source, or with ``op.reduced`` one per rank.
    """
    assert op.expected is not None
    blocks = [op.expected] if op.reduced else [[source] for source in op.expected]
    for block, sources in enumerate(blocks):
        for first in range(0, op.count, CHUNK):
            some = min(CHUNK, op.count - first)
            yield block * op.count + first, some, [source.at(first) for source in sources]


def inexact(op: Op) -> bool:
    """Whether NCCL may multiply by a rounded 1/n."""
    nranks = len(op.expected or ())
    power_of_two = nranks & (nranks - 1) == 0
    return op.reduced and op.op == "avg" and op.dtype.startswith("float") and not power_of_two


class HostData:
    """The data of a replay on hosts.

    Args:
        memory: locates the buffers of an operation.
        check: whether to fill inputs and compare outputs.
        differ: called by the worker of a stream for an output that differs.
        fail: called with an exception raised by filling or comparing.
    """

    def __init__(
        self,
        memory: Callable[[Op], Memory],
        *,
        check: bool,
        differ: Differ,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._np = _import_numpy()
        self._memory = memory
        self._check = check
        self._differ = differ
        self._fail = fail
        self._sequences = Sequences()
        self._times: dict[int, int] = {}  # of operations on the thread
        self._began: dict[int, nccl.Event] = {}
        self._events: list[tuple[Sequence[Op], nccl.Event, nccl.Event]] = []
        self._durations: list[tuple[Op, int]] = []

    def before(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        filled = [op for op in ops if self._check and op.source is not None]
        if filled:
            self._run(stream, functools.partial(self._each, self.fill, filled))
        if stream is None:
            self._times[id(ops[0])] = time.perf_counter_ns()
        else:
            self._began[id(ops[0])] = self._event(stream)

    def after(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        if stream is None:
            duration = time.perf_counter_ns() - self._times.pop(id(ops[0]))
            self._durations += [(op, duration) for op in ops]
        else:
            self._events.append((ops, self._began.pop(id(ops[0])), self._event(stream)))
        compared = [op for op in ops if self._check and op.expected is not None]
        if compared:
            self._run(stream, functools.partial(self._each, self.compare, compared))

    def durations(self) -> Iterator[tuple[Op, int]]:
        yield from self._durations
        for ops, began, ended in self._events:
            duration = round(began.elapsed_time(ended) * 1e9)
            for op in ops:
                yield op, duration

    def _event(self, stream: nccl.Stream) -> nccl.Event:
        # Functions on the stream would wait for the GIL while the thread issues operations.
        from pynccl import nccl

        event = nccl.Event("host", timing=True)
        event.record(stream)
        return event

    def _run(self, stream: nccl.Stream | None, function: Callable[[], None]) -> None:
        if stream is None:
            function()
        else:
            stream.launch(function)

    def _each(self, function: Callable[[Op], None], ops: Sequence[Op]) -> None:
        try:
            for op in ops:
                function(op)
        except BaseException as error:  # it must not propagate into a stream's worker
            self._fail(error)

    def _array(self, op: Op, offset: int, count: int) -> NDArray[Any]:
        import ctypes

        size = count * op.itemsize
        memory = (ctypes.c_char * size).from_address(self._memory(op).ptr + offset)
        array: NDArray[Any] = self._np.frombuffer(memory, self._sequences.storage(op.dtype))
        return array

    def fill(self, op: Op) -> None:
        """Fill the input of an operation immediately."""
        assert op.source is not None
        array = self._array(op, op.send, op.sent)
        for first in range(0, op.sent, CHUNK):
            some = min(CHUNK, op.sent - first)
            codes = self._sequences.codes(op.source.at(first), op.dtype, some)
            array[first : first + some] = codes

    def compare(self, op: Op) -> None:
        """Compare the output of an operation immediately."""
        np = self._np
        array = self._array(op, op.recv, op.received)
        for first, count, sources in chunks(op):
            if op.reduced:
                codes = self._sequences.reduced(op, sources, count)
            else:
                codes = self._sequences.codes(sources[0], op.dtype, count)
            got = array[first : first + count]
            if np.array_equal(got, codes):
                continue
            if inexact(op) and np.allclose(got, codes, rtol=2e-3 if op.itemsize == 2 else 1e-5):
                continue
            where = int(np.argmax(got != codes))
            self._differ(op, first + where, got[where].item(), codes[where].item())
            return
