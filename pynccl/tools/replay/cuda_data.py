"""Fills inputs and checks results on GPUs with torch, synchronising only at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pynccl.tools.replay.data import CHUNK, Differ, chunks, inexact
from pynccl.tools.replay.model import ReplayError
from pynccl.tools.replay.program import Op
from pynccl.tools.replay.values import SCALAR, Source

if TYPE_CHECKING:
    from pynccl import nccl

__all__ = ["CudaData"]

# The dtypes that torch computes in; they represent the small numbers used here exactly.
_DTYPES = {
    "uint32": "int32",
    "uint64": "int64",
    "float8_e4m3": "float8_e4m3fn",
}
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class CudaData:
    """The data of a replay on GPUs.

    Args:
        memory: locates the buffers of an operation.
        check: whether to fill inputs and compare outputs.
        differ: called for an output that differs.
        device: index of the GPU.
    """

    def __init__(
        self, memory: Callable[[Op], nccl.Buffer], *, check: bool, differ: Differ, device: int
    ) -> None:
        try:
            import torch
        except ImportError:
            raise ReplayError("a replay on GPUs needs torch, which is not installed") from None
        self._torch: Any = torch
        self._memory = memory
        self._check = check
        self._differ = differ
        self._device = torch.device("cuda", device)
        self._tiles: dict[tuple[object, ...], Any] = {}
        self._bytes: dict[int, Any] = {}
        self._began: dict[int, Any] = {}
        self._timed: list[tuple[Sequence[Op], Any, Any]] = []
        self._flags: list[tuple[Op, int, Any]] = []

    def before(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        with self._on(stream):
            for op in ops:
                if self._check and op.source is not None:
                    self.fill(op)
            self._began[id(ops[0])] = self._event()

    def after(self, stream: nccl.Stream | None, ops: Sequence[Op]) -> None:
        with self._on(stream):
            self._timed.append((ops, self._began.pop(id(ops[0])), self._event()))
            for op in ops:
                if self._check and op.expected is not None:
                    self.compare(op)

    def durations(self) -> Iterator[tuple[Op, int]]:
        self._torch.cuda.synchronize(self._device)
        different: set[int] = set()
        for op, first, flag in self._flags:
            if bool(flag.item()) and id(op) not in different:
                different.add(id(op))
                self._differ(op, first, float("nan"), float("nan"))
        for ops, begin, end in self._timed:
            for op in ops:
                yield op, round(begin.elapsed_time(end) * 1e6)

    def fill(self, op: Op) -> None:
        """Enqueue the filling of an operation's input on the current stream."""
        assert op.source is not None
        bits = getattr(self._torch, _BITS[op.itemsize])
        target = self._part(op, op.send, op.sent).view(bits)
        for first in range(0, op.sent, CHUNK):
            some = min(CHUNK, op.sent - first)
            numbers = self._numbers(op.source.at(first), some)
            target[first : first + some].copy_(self._encoded(numbers, op).view(bits))

    def compare(self, op: Op) -> None:
        """Enqueue the comparison of an operation's output on the current stream."""
        bits = getattr(self._torch, _BITS[op.itemsize])
        output = self._part(op, op.recv, op.received)
        for first, count, sources in chunks(op):
            numbers = [self._numbers(source, count) for source in sources]
            total = self._reduced(op, numbers) if op.reduced else numbers[0]
            expected = self._encoded(total, op)
            got = output[first : first + count]
            if inexact(op):
                tolerance = 2e-3 if op.itemsize == 2 else 1e-5
                flag = ~self._torch.isclose(got, expected, rtol=tolerance).all()
            else:
                flag = (got.view(bits) != expected.view(bits)).any()
            self._flags.append((op, first, flag))

    def _on(self, stream: nccl.Stream | None) -> Any:  # noqa: ANN401 - a context of torch
        cuda = self._torch.cuda
        if stream is None:
            return cuda.stream(cuda.default_stream(self._device))
        return cuda.stream(cuda.ExternalStream(stream.handle, device=self._device))

    def _event(self) -> Any:  # noqa: ANN401 - an event of torch
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _dtype(self, op: Op) -> Any:  # noqa: ANN401 - a dtype of torch
        return getattr(self._torch, _DTYPES.get(op.dtype, op.dtype))

    def _part(self, op: Op, offset: int, count: int) -> Any:  # noqa: ANN401 - a tensor
        buffer = self._memory(op)
        if buffer.ptr not in self._bytes:
            self._bytes[buffer.ptr] = self._torch.from_dlpack(buffer).view(self._torch.uint8)
        whole = self._bytes[buffer.ptr]
        return whole[offset : offset + count * op.itemsize].view(self._dtype(op))

    def _numbers(self, source: Source, count: int) -> Any:  # noqa: ANN401 - a tensor
        key = (source.mode, source.modulus, source.factor)
        if key not in self._tiles:
            numbers = self._torch.arange(CHUNK + source.modulus, device=self._device)
            numbers = numbers % source.modulus
            if source.mode == "power":
                numbers = 1 + numbers % 2
            elif source.mode == "sign":
                numbers = 1 - 2 * (numbers % 2)
            elif source.mode == "multiple":
                numbers = numbers * source.factor
            self._tiles[key] = numbers
            self._torch.cuda.synchronize(self._device)  # other streams read it
        return self._tiles[key][source.phase : source.phase + count]

    def _reduced(self, op: Op, numbers: Sequence[Any]) -> Any:  # noqa: ANN401 - a tensor
        torch = self._torch
        functions = {"prod": torch.mul, "min": torch.minimum, "max": torch.maximum}
        total = functools.reduce(functions.get(op.op or "", torch.add), numbers)
        if op.op == "user-defined":
            total = total * SCALAR
        return total // len(numbers) if op.op == "avg" else total

    def _encoded(self, numbers: Any, op: Op) -> Any:  # noqa: ANN401 - a tensor
        if op.itemsize == 1 and op.dtype.startswith("float8"):
            numbers = numbers.to(self._torch.float32)
        return numbers.to(self._dtype(op))
