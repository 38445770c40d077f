"""Communications for the lab: a collective with a size, chunks and a kind of buffer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

from pynccl import nccl
from pynccl.tools.lab.tensors import has_torch, zeros
from pynccl.tools.trace.bandwidth import BUS_FACTORS

__all__ = ["BUFFERS", "COLLECTIVES", "BufferKind", "Communication"]

BufferKind = Literal["plain", "registered", "window"]
BUFFERS: tuple[BufferKind, ...] = get_args(BufferKind)
COLLECTIVES = tuple(BUS_FACTORS)
_SIZE = 4  # bytes of a float32
_ROOT = 0


class Communication:
    """A collective that is enqueued on the stream it is called with.

    Args:
        comm: the communicator.
        collective: one of COLLECTIVES; "send_recv" sends to the next rank and receives from the
            previous one.
        nbytes: size of the larger buffer, rounded down to whole float32 elements per rank.
        buffer: "plain" memory of torch, or of NCCL if torch is not installed, or memory of NCCL
            (ncclMemAlloc) that is "registered" (ncclCommRegister) or in a "window"
            (ncclCommWindowRegister).
        chunks: number of equal calls that it is divided into, each with its own buffers.
        config: the configuration of each call.

    Raises:
        ValueError: the collective or kind of buffer is unknown, or a chunk would be empty.
    """

    def __init__(
        self,
        comm: nccl.Communicator,
        collective: str,
        nbytes: int,
        *,
        buffer: BufferKind = "plain",
        chunks: int = 1,
        config: nccl.CollConfig | None = None,
    ) -> None:
        if collective not in COLLECTIVES:
            raise ValueError(f"collective: {collective!r} is not one of {', '.join(COLLECTIVES)}")
        if buffer not in BUFFERS:
            raise ValueError(f"buffer: {buffer!r} is not one of {', '.join(BUFFERS)}")
        if chunks < 1:
            raise ValueError(f"chunks: {chunks} is below 1")
        blocks = comm.nranks if collective in _BLOCK_COLLECTIVES else 1
        count = nbytes // chunks // blocks // _SIZE
        if count < 1:
            raise ValueError(f"nbytes: {nbytes} is less than a float32 for each rank and chunk")
        self._comm = comm
        self._config = config
        self._kept: list[Any] = []
        self._calls: list[Callable[[nccl.Stream], object]] = []
        for _ in range(chunks):
            buffers = {size: self._buffer(buffer, size) for size in sorted({count, count * blocks})}
            send, recv = buffers[count], buffers[count * blocks]
            self._calls.append(functools.partial(self._call, collective, send, recv))
            if collective in ("all_to_all", "send_recv"):  # these cannot run in place
                second = self._buffer(buffer, count * blocks)
                self._calls[-1] = functools.partial(self._call, collective, recv, second)

    def __call__(self, stream: nccl.Stream) -> None:
        """Enqueue the calls, one for each chunk."""
        for call in self._calls:
            call(stream)

    def close(self) -> None:
        """Free windows, registrations and memory; all ranks call it."""
        while self._kept:
            self._kept.pop().close()

    def _buffer(self, kind: BufferKind, count: int) -> Any:  # noqa: ANN401
        if kind == "window":
            self._kept.append(window := self._comm.symmetric_empty(count, "float32"))
            return window
        if kind == "plain" and has_torch():
            return zeros(self._comm, count)
        self._kept.append(made := self._comm.mem_alloc(count, "float32"))
        if kind == "registered":
            self._kept.append(self._comm.register(made))
        return made

    def _call(self, collective: str, small: Any, large: Any, stream: nccl.Stream) -> None:  # noqa: ANN401
        comm = self._comm
        options: dict[str, Any] = {"stream": stream}
        if self._config is not None:
            options["config"] = self._config
        if collective == "all_reduce":
            comm.all_reduce(small, **options)
        elif collective in ("broadcast", "reduce"):
            getattr(comm, collective)(small, _ROOT, **options)
        elif collective == "all_gather":
            comm.all_gather(small, out=large, **options)
        elif collective == "reduce_scatter":
            comm.reduce_scatter(large, out=small, **options)
        elif collective == "all_to_all":
            comm.all_to_all(small, out=large, **options)
        elif collective == "gather":
            out = {"out": large} if comm.rank == _ROOT else {}
            comm.gather(small, _ROOT, **out, **options)
        elif collective == "scatter":
            comm.scatter(large if comm.rank == _ROOT else None, _ROOT, out=small, **options)
        else:
            with nccl.group():
                comm.send(small, (comm.rank + 1) % comm.nranks, stream=stream)
                comm.recv(large, (comm.rank - 1) % comm.nranks, stream=stream)


_BLOCK_COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
