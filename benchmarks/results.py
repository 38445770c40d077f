"""The messages between the ranks and their parent process, and the content of the JSON file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.machine import Machine

__all__ = [
    "DTYPES",
    "OUR_GRAPH",
    "SECTIONS",
    "TORCH_GRAPH",
    "Agenda",
    "Done",
    "Figure",
    "Note",
    "Plan",
    "Row",
    "Settings",
    "Start",
    "Timing",
]

# A row of a section of benchmarks.gpu, by column; report.table() prints it.
Figure: TypeAlias = dict[str, Any]

# Those of benchmarks.gpu, in their order.
SECTIONS = ("calls", "kernels", "overlap", "lab", "collectives", "sequences")

# Ways of the section "sequences".
OUR_GRAPH = "pynccl, a CUDA graph"
TORCH_GRAPH = "torch, a CUDA graph"

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
    seconds: float = math.inf
    others: bool = False
    unbuilt: str = ""


@dataclass(frozen=True)
class Agenda:
    """What the ranks of a world of benchmarks.gpu have to measure.

    Attributes:
        sections: of SECTIONS, in their order.
        without: ways of the section "sequences" to leave out.
        quick: little of everything.
    """

    sections: tuple[str, ...]
    without: frozenset[str]
    quick: bool

    def after(self, done: set[str], fallbacks: Sequence[str]) -> Agenda | None:
        """What to do when the first section that is not done has failed; None for no more.

        Args:
            done: sections that are complete.
            fallbacks: ways of "sequences" that are given up one by one, before all of it is.
        """
        failed, *rest = [section for section in self.sections if section not in done] or [""]
        if failed == "sequences":
            for way in fallbacks:
                if way not in self.without:
                    return Agenda((failed, *rest), self.without | {way}, self.quick)
        return Agenda(tuple(rest), self.without, self.quick) if rest else None


@dataclass(frozen=True)
class Start:
    """A world has come up.

    Attributes:
        gpus: how many GPUs its ranks have.
        engine: of torch.distributed, to which the others are compared.
        absent: the libraries that cannot be measured, and why.
    """

    gpus: int
    engine: str
    absent: dict[str, str]


@dataclass(frozen=True)
class Done:
    """The next section of the agenda is complete, after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Plan:
    """What the ranks are about to do."""

    libraries: tuple[str, ...]
    machine: Machine


@dataclass(frozen=True)
class Note:
    """A line for the reader."""

    text: str


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

    def figures(self) -> Iterator[Figure]:
        """The row as figures, one for each library."""
        torch, torch_host = (
            (self.torch.seconds, self.torch.host_seconds) if self.torch else (None, None)
        )
        for timing in self.timings:
            yield {
                "collective": self.collective,
                "bytes": self.nbytes,
                "library": timing.library,
                "seconds": timing.seconds,
                "times_faster": _ratio(torch, timing.seconds),
                "host_seconds": timing.host_seconds,
                "host_times_faster": _ratio(torch_host, timing.host_seconds),
                "algbw": timing.algbw,
                "busbw": timing.busbw,
                "samples": timing.samples,
            }


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None
