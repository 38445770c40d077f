"""Fills inputs and checks results: on hosts with NumPy, on GPUs with torch."""

from __future__ import annotations

import ctypes
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pynccl.tools.replay.program import SCALAR, Op, Source
from pynccl.tools.replay.recorded import ReplayError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pynccl import nccl

__all__ = ["STORAGE", "CudaData", "Data", "HostData", "Memory", "Sequences"]

_CHUNK = 1 << 18  # elements that are filled or compared at once
STORAGE = {"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}
_EIGHT_BITS = {"float8_e4m3": (4, 3), "float8_e5m2": (5, 2)}  # of exponent and mantissa
# The dtypes that torch computes in; they represent the small numbers used here exactly.
_TORCH_DTYPES = {"uint32": "int32", "uint64": "int64", "float8_e4m3": "float8_e4m3fn"}
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}

# Reports a difference: the operation, the element, its value and the expected value.
_Differ = Callable[[Op, int, float, float], None]


class Memory(Protocol):
    """The memory of all operations."""

    @property
    def ptr(self) -> int: ...


# --- expected values; arrays are those of NumPy or torch


def _sequence(library: Any, source: Source, **options: object) -> Any:  # noqa: ANN401
    """As much of a source's sequence as a chunk needs from any phase on, as int64."""
    numbers = library.arange(_CHUNK + source.modulus, dtype=library.int64, **options)
    numbers = numbers % source.modulus
    if source.mode == "power":
        return 1 + numbers % 2
    if source.mode == "sign":
        return 1 - 2 * (numbers % 2)
    return numbers * source.factor


def _reduced(library: Any, op: Op, numbers: Sequence[Any]) -> Any:  # noqa: ANN401
    """The result of a reduction over the numbers of all ranks."""
    functions = {"prod": library.multiply, "min": library.minimum, "max": library.maximum}
    total = functools.reduce(functions.get(op.op or "", library.add), numbers)
    if op.op == "user-defined":
        return total * SCALAR
    # The terms of an average of floats are multiples of their number.
    return total // len(numbers) if op.op == "avg" else total


def _chunks(op: Op) -> Iterator[tuple[int, int, list[Source]]]:
    """The chunks of an output: the first element, the number of elements, and their sources.

    There is one source, or with ``op.reduced`` one per rank.
    """
    assert op.expected is not None
    blocks = [op.expected] if op.reduced else [[source] for source in op.expected]
    for block, sources in enumerate(blocks):
        for first in range(0, op.count, _CHUNK):
            some = min(_CHUNK, op.count - first)
            yield block * op.count + first, some, [source.at(first) for source in sources]


def _tolerance(op: Op) -> float | None:
    """The relative tolerance if NCCL may multiply by a rounded 1/n; None if results are exact."""
    nranks = len(op.expected or ())
    rounded = op.reduced and op.op == "avg" and op.dtype.startswith("float")
    if not rounded or nranks & (nranks - 1) == 0:
        return None
    return 2e-3 if op.itemsize == 2 else 1e-5


class Data(ABC):
    """Fills the inputs of operations, times them, and compares their outputs.

    Args:
        differ: called for an output that differs.
        device: index of the GPU; None on hosts.
    """

    def __init__(self, differ: _Differ, device: int | None = None) -> None:
        self._differ = differ
        self._device = device
        self._began: dict[int, nccl.Event] = {}
        self._timed: list[tuple[Sequence[Op], nccl.Event, nccl.Event]] = []

    def before(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        """Enqueue the filling of inputs, and a timestamp."""
        self._enqueue(stream, self._fill, [op for op in ops if op.source is not None])
        self._began[id(ops[0])] = self._event(stream)

    def after(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        """Enqueue a timestamp, and the comparison of outputs."""
        self._timed.append((ops, self._began.pop(id(ops[0])), self._event(stream)))
        self._enqueue(stream, self._compare, [op for op in ops if op.expected is not None])

    def durations(self) -> Iterator[tuple[Op, int]]:
        """The nanoseconds of each operation, once all are done."""
        for ops, began, ended in self._timed:
            duration = round(began.elapsed_time(ended) * 1e9)
            yield from ((op, duration) for op in ops)

    def _event(self, stream: nccl.Stream | None) -> nccl.Event:
        # Functions on the stream would wait for the GIL while the thread issues operations.
        from pynccl import nccl

        provider = "host" if self._device is None else "cuda"
        event = nccl.Event(provider, device=self._device, timing=True)
        event.record(0 if stream is None else stream)
        return event

    @abstractmethod
    def _enqueue(
        self, stream: nccl.Stream | None, function: Callable[[Op], None], ops: Sequence[Op]
    ) -> None:
        """Enqueue the calls of a function with operations."""

    @abstractmethod
    def _fill(self, op: Op) -> None:
        """Fill the input of an operation."""

    @abstractmethod
    def _compare(self, op: Op) -> None:
        """Report the differences of an operation's output."""


# --- on hosts


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
        try:
            import numpy as np
        except ImportError:
            raise ReplayError("a replay on hosts needs NumPy, which is not installed") from None
        self.np: Any = np
        self._numbers: dict[tuple[object, ...], NDArray[np.int64]] = {}
        self._codes: dict[tuple[object, ...], NDArray[Any]] = {}
        self._tables: dict[str, NDArray[np.uint8]] = {}

    def storage(self, dtype: str) -> Any:  # noqa: ANN401 - a NumPy dtype
        return self.np.dtype(STORAGE.get(dtype, dtype))

    def _tile(self, source: Source) -> NDArray[np.int64]:
        key = (source.mode, source.modulus, source.factor)
        if key not in self._numbers:
            self._numbers[key] = _sequence(self.np, source)
        return self._numbers[key]

    def codes(self, source: Source, dtype: str, count: int) -> NDArray[Any]:
        """The encoded numbers of a source, at most a chunk."""
        key = (source.mode, source.modulus, source.factor, dtype)
        if key not in self._codes:
            self._codes[key] = self._encode(self._tile(source), dtype)
        codes: NDArray[Any] = self._codes[key][source.phase : source.phase + count]
        return codes

    def _encode(self, numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
        np = self.np
        if dtype in _EIGHT_BITS:
            if dtype not in self._tables:
                codes = [_encoded(n, dtype) for n in range(-256, 257)]
                self._tables[dtype] = np.array(codes, np.uint8)
            table: NDArray[Any] = self._tables[dtype][numbers + 256]
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
        numbers = [self._tile(one)[one.phase : one.phase + count] for one in sources]
        return self._encode(_reduced(self.np, op, numbers), op.dtype)


class HostData(Data):
    """The data of a replay on hosts.

    Args:
        memory: the memory of the operations.
        differ: called by the worker of a stream for an output that differs.
        fail: called with an exception raised by filling or comparing.
    """

    def __init__(
        self, memory: Memory, differ: _Differ, *, fail: Callable[[BaseException], None]
    ) -> None:
        super().__init__(differ)
        self._sequences = Sequences()
        self._memory = memory
        self._fail = fail

    def _enqueue(
        self, stream: nccl.Stream | None, function: Callable[[Op], None], ops: Sequence[Op]
    ) -> None:
        def work() -> None:
            try:
                for op in ops:
                    function(op)
            except BaseException as error:  # it must not propagate into a stream's worker
                self._fail(error)

        if stream is None:
            work()
        elif ops:
            stream.launch(work)

    def _array(self, op: Op, offset: int, count: int) -> NDArray[Any]:
        np = self._sequences.np
        memory = (ctypes.c_char * (count * op.itemsize)).from_address(self._memory.ptr + offset)
        array: NDArray[Any] = np.frombuffer(memory, self._sequences.storage(op.dtype))
        return array

    def _fill(self, op: Op) -> None:
        """Fill the input of an operation immediately."""
        assert op.source is not None
        array = self._array(op, op.send, op.sent)
        for first in range(0, op.sent, _CHUNK):
            some = min(_CHUNK, op.sent - first)
            codes = self._sequences.codes(op.source.at(first), op.dtype, some)
            array[first : first + some] = codes

    def _compare(self, op: Op) -> None:
        """Compare the output of a completed operation."""
        np = self._sequences.np
        array = self._array(op, op.recv, op.received)
        tolerance = _tolerance(op)
        for first, count, sources in _chunks(op):
            if op.reduced:
                codes = self._sequences.reduced(op, sources, count)
            else:
                codes = self._sequences.codes(sources[0], op.dtype, count)
            got = array[first : first + count]
            if np.array_equal(got, codes):
                continue
            if tolerance is not None and np.allclose(got, codes, rtol=tolerance):
                continue
            where = int(np.argmax(got != codes))
            self._differ(op, first + where, got[where].item(), codes[where].item())
            return


# --- on GPUs


class CudaData(Data):
    """The data of a replay on GPUs, which is synchronised only at the end.

    Args:
        memory: the memory of the operations.
        differ: called for an output that differs.
        device: index of the GPU.
    """

    def __init__(self, memory: nccl.Buffer, differ: _Differ, *, device: int) -> None:
        super().__init__(differ, device)
        try:
            import torch
        except ImportError:
            raise ReplayError("a replay on GPUs needs torch, which is not installed") from None
        self._torch: Any = torch
        self._tiles: dict[tuple[object, ...], Any] = {}
        self._bytes: Any = self._torch.from_dlpack(memory).view(torch.uint8)
        self._flags: list[tuple[Op, int, Any]] = []

    def durations(self) -> Iterator[tuple[Op, int]]:
        """The nanoseconds of each operation, after reporting the differences."""
        self._torch.cuda.synchronize(self._device)
        different: set[int] = set()
        for op, first, flag in self._flags:
            if bool(flag.item()) and id(op) not in different:
                different.add(id(op))
                self._differ(op, first, float("nan"), float("nan"))
        yield from super().durations()

    def _enqueue(
        self, stream: nccl.Stream | None, function: Callable[[Op], None], ops: Sequence[Op]
    ) -> None:
        if not ops:
            return
        cuda = self._torch.cuda
        if stream is None:
            used = cuda.default_stream(self._device)
        else:
            used = cuda.ExternalStream(stream.handle, device=self._device)
        with cuda.stream(used):
            for op in ops:
                function(op)

    def _fill(self, op: Op) -> None:
        assert op.source is not None
        bits = getattr(self._torch, _BITS[op.itemsize])
        target = self._part(op, op.send, op.sent).view(bits)
        for first in range(0, op.sent, _CHUNK):
            some = min(_CHUNK, op.sent - first)
            numbers = self._numbers(op.source.at(first), some)
            target[first : first + some].copy_(self._encoded(numbers, op).view(bits))

    def _compare(self, op: Op) -> None:
        """Enqueue the comparison of an operation's output on the current stream."""
        torch = self._torch
        bits = getattr(torch, _BITS[op.itemsize])
        output = self._part(op, op.recv, op.received)
        tolerance = _tolerance(op)
        for first, count, sources in _chunks(op):
            numbers = [self._numbers(source, count) for source in sources]
            total = _reduced(torch, op, numbers) if op.reduced else numbers[0]
            expected = self._encoded(total, op)
            got = output[first : first + count]
            if tolerance is not None:
                flag = ~torch.isclose(got, expected, rtol=tolerance).all()
            else:
                flag = (got.view(bits) != expected.view(bits)).any()
            self._flags.append((op, first, flag))

    def _dtype(self, op: Op) -> Any:  # noqa: ANN401 - a dtype of torch
        return getattr(self._torch, _TORCH_DTYPES.get(op.dtype, op.dtype))

    def _part(self, op: Op, offset: int, count: int) -> Any:  # noqa: ANN401 - a tensor
        return self._bytes[offset : offset + count * op.itemsize].view(self._dtype(op))

    def _numbers(self, source: Source, count: int) -> Any:  # noqa: ANN401 - a tensor
        key = (source.mode, source.modulus, source.factor)
        if key not in self._tiles:
            self._tiles[key] = _sequence(self._torch, source, device=f"cuda:{self._device}")
            self._torch.cuda.synchronize(self._device)  # other streams read it
        return self._tiles[key][source.phase : source.phase + count]

    def _encoded(self, numbers: Any, op: Op) -> Any:  # noqa: ANN401 - a tensor
        if op.itemsize == 1 and op.dtype.startswith("float8"):
            numbers = numbers.to(self._torch.float32)
        return numbers.to(self._dtype(op))
