"""The messages between the ranks and their parent process, and the content of the JSON file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.machine import Machine

__all__ = ["DTYPES", "Absent", "Note", "Plan", "Row", "Settings", "Timing"]

# Those in which the checks are exact.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
        nranks: processes.
        device: ``"cpu"`` or ``"cuda"``.
        dtype: one of DTYPES.
        collectives: keys of BUS_FACTORS.
        sizes: bytes.
        repeats: samples of each library in a row.
        budget: seconds that a sample should last.
        folder: an empty one, for the rendezvous of the ranks.
        seconds: after which no new row begins.
        others: whether to measure pynccl as dist and the other backends of torch.distributed, too.
        unbuilt: why pynccl's backend cannot be measured, or ''.
    """

    nranks: int
    device: str
    dtype: str
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    repeats: int
    budget: float
    folder: str
    seconds: float = math.inf
    others: bool = False
    unbuilt: str = ""


@dataclass(frozen=True)
class Plan:
    """What the ranks are about to do."""

    rows: int
    libraries: tuple[str, ...]
    machine: Machine


@dataclass(frozen=True)
class Note:
    """A line for the reader."""

    text: str


@dataclass(frozen=True)
class Absent:
    """A library that was to be measured.

    Attributes:
        library: its name.
        reason: why it could not be.
    """

    library: str
    reason: str


@dataclass(frozen=True)
class Timing:
    """One library's time for one operation.

    Attributes:
        library: its name.
        seconds: the median of samples; on GPUs device time, between two events on the stream.
        samples: seconds for one operation, the maximum over ranks, one for each repeat.
        iterations: operations in a sample.
        host_seconds: on GPUs the time until the call returns, the median of maxima likewise.
        algbw, busbw: GB/s.
    """

    library: str
    seconds: float
    samples: tuple[float, ...]
    iterations: int
    host_seconds: float | None
    algbw: float
    busbw: float


@dataclass(frozen=True)
class Row:
    """One collective of one size, all results checked before.

    Attributes:
        collective: which.
        nbytes: its size.
        pynccl: through its communicator.
        torch: torch.distributed, with its own engine for the device.
        others: pynccl as dist, and other backends of torch.distributed.
    """

    collective: str
    nbytes: int
    pynccl: Timing
    torch: Timing | None
    others: tuple[Timing, ...] = ()

    @property
    def timings(self) -> tuple[Timing, ...]:
        """All there are."""
        return (self.pynccl, *([self.torch] if self.torch else []), *self.others)

    @property
    def times_faster(self) -> float | None:
        """How many times the time of pynccl torch.distributed takes."""
        return self.torch.seconds / self.pynccl.seconds if self.torch else None
