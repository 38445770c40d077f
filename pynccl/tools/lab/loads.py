"""Loads that hide communication: of known duration, compute-bound or memory-bound.

A load is called with a stream and enqueues its work on it. Its duration can be fitted to a given
time.
"""

from __future__ import annotations

import ctypes
import functools
import time

from pynccl import nccl
from pynccl.tools.lab.steps import maximum, timed
from pynccl.tools.lab.tensors import enqueue, random, zeros
from pynccl.tools.text import parse_size

__all__ = ["Gemm", "Load", "MemoryBound", "Sleep", "Spin", "fit", "has_duration", "make_load"]

_PROBES = 3  # the fastest counts
_MOST_TIMES = 10**6
_MEASURABLE = 5e-3  # seconds


class Load:
    """Work on a stream; :func:`make_load` creates the built-in ones.

    Attributes:
        times: how often one call repeats the work; the duration scales with it.
    """

    def __init__(self) -> None:
        self.times = 1

    def __call__(self, stream: nccl.Stream) -> None:
        """Enqueue the work.

        Args:
            stream: the stream.
        """
        raise NotImplementedError


class _Timed(Load):
    """A load of a known duration."""

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds <= 1000:
            raise ValueError(f"seconds: {seconds} is not above 0 and at most 1000")
        super().__init__()
        self.seconds = seconds


class Sleep(_Timed):
    """Blocks a stream for a known time and occupies nothing else.

    It is a host function on the stream, on GPUs as well: it uses no SM, no bandwidth and no GIL.
    CUDA runs such functions of all streams one after another, so two of these do not overlap there,
    and lab.overlap() with ``evidence`` mistakes a delay by its own functions for a wait.

    Args:
        seconds: duration, rounded to microseconds; the system may add about 0.1 ms.

    Raises:
        ValueError: seconds is not above 0, or is above 1000.
    """

    def __call__(self, stream: nccl.Stream) -> None:
        for _ in range(self.times):
            stream.launch_native(_usleep(), max(1, round(self.seconds * 1e6)))


class Spin(_Timed):
    """Occupies one CPU core for a known time, and the GIL for most of it.

    Args:
        seconds: duration.

    Raises:
        ValueError: seconds is not above 0, or is above 1000.
    """

    def __call__(self, stream: nccl.Stream) -> None:
        stream.launch(self._spin)

    def _spin(self) -> None:
        end = time.perf_counter() + self.seconds * self.times
        while time.perf_counter() < end:
            pass


class Gemm(Load):
    """Products of square float32 matrices by torch: compute-bound.

    Args:
        comm: the communicator on whose device they are.
        side: rows and columns of the matrices.

    Raises:
        ValueError: side is below 1.
    """

    def __init__(self, comm: nccl.Communicator, side: int) -> None:
        if side < 1:
            raise ValueError(f"side: {side} is below 1")
        super().__init__()
        # Multiplying zeros draws less power, so that a GPU clocks higher.
        self._a, self._b = random(comm, side, side), random(comm, side, side)
        self._out = zeros(comm, side, side)

    def __call__(self, stream: nccl.Stream) -> None:
        enqueue(stream, self._multiply)

    def _multiply(self) -> None:
        import torch

        for _ in range(self.times):
            torch.mm(self._a, self._b, out=self._out)


class MemoryBound(Load):
    """Copies of a large tensor by torch: memory-bound.

    Args:
        comm: the communicator on whose device it is.
        nbytes: size of the tensor; should exceed the caches.

    Raises:
        ValueError: nbytes is below 4.
    """

    def __init__(self, comm: nccl.Communicator, nbytes: int) -> None:
        if nbytes < 4:
            raise ValueError(f"nbytes: {nbytes} is below 4")
        super().__init__()
        self._to, self._source = (zeros(comm, nbytes // 4) for _ in range(2))

    def __call__(self, stream: nccl.Stream) -> None:
        enqueue(stream, self._copy)

    def _copy(self) -> None:
        for _ in range(self.times):
            self._to.copy_(self._source)


@functools.cache
def _usleep() -> int:
    address = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    assert address is not None
    return address


def fit(load: Load, seconds: float, comm: nccl.Communicator, stream: nccl.Stream) -> float:
    """Repeat a load so that one call takes about a given time; all ranks call it.

    Args:
        load: its ``times`` is set, to the same number on all ranks.
        seconds: target duration of one call.
        comm: the communicator.
        stream: the stream to measure the load on.

    Returns:
        The estimated seconds of one call, from a shorter run.
    """
    load.times = 1
    if isinstance(load, _Timed):
        load.seconds = seconds
        return seconds
    # Work that is shorter than the start of a thread is repeated and measured again.
    for target in (min(seconds, _MEASURABLE), seconds):
        shortest = min(timed(comm, stream, load) for _ in range(_PROBES))
        once = max(maximum(comm, stream, [shortest])[0], 1e-7) / load.times
        load.times = max(1, min(_MOST_TIMES, round(target / once)))
    return once * load.times


def has_duration(text: str) -> bool:
    """Whether the name of a load contains its seconds, as in "sleep:0.005"."""
    name, _, value = text.partition(":")
    return name in ("sleep", "spin") and value != ""


def make_load(text: str, comm: nccl.Communicator) -> Load:
    """Create a load from its name.

    Args:
        text: ``"sleep:SECONDS"``, ``"spin:SECONDS"``, ``"gemm:SIDE"`` or ``"memory:64M"``.
        comm: the communicator whose memory the load uses.

    Returns:
        A load.

    Raises:
        ValueError: the load is unknown.
        ModuleNotFoundError: ``"gemm"`` and ``"memory"`` need torch, which is not installed.
    """
    name, _, value = text.partition(":")
    try:
        if name in ("sleep", "spin"):
            kind = Sleep if name == "sleep" else Spin
            return kind(float(value or 0.01))
        if name == "gemm":
            return Gemm(comm, int(value or 512))
        if name == "memory":
            return MemoryBound(comm, parse_size(value or "64M"))
    except ValueError as error:
        raise ValueError(f"load: {text!r}: {error}") from error
    raise ValueError(
        f"load: {text!r} is not sleep:SECONDS, spin:SECONDS, gemm:SIDE or memory:BYTES"
    )
