"""What the ranks of benchmarks.gpu measure, beside the rows of benchmarks.results."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

__all__ = [
    "BARE",
    "SECTIONS",
    "Agenda",
    "CallCost",
    "Done",
    "KernelTime",
    "LabRow",
    "Overlap",
    "Sequence",
    "Start",
]

BARE = "NCCL's C function, from C"

SECTIONS = ("calls", "kernels", "overlap", "lab", "collectives", "sequences")


@dataclass(frozen=True)
class Agenda:
    """What the ranks of a world have to measure.

    Attributes:
        sections: of SECTIONS, in their order.
        without: ways of the section "sequences" to leave out.
        quick: little of everything.
    """

    sections: tuple[str, ...]
    without: frozenset[str]
    quick: bool

    def after(self, done: set[str], fallbacks: Sequence_[str]) -> Agenda | None:
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
        nranks: its size.
        gpus: how many GPUs its ranks have.
        engine: of torch.distributed, to which the others are compared.
    """

    nranks: int
    gpus: int
    engine: str


@dataclass(frozen=True)
class Done:
    """A section is complete.

    Attributes:
        section: its name.
        seconds: what it took.
    """

    section: str
    seconds: float


@dataclass(frozen=True)
class CallCost:
    """How long the host is in one all_reduce call, its device's work not counted on GPUs.

    Attributes:
        nranks: the world's size.
        way: how it was called.
        nbytes: the size.
        seconds: the median of samples, each the maximum over ranks.
        samples: seconds for one call.
    """

    nranks: int
    way: str
    nbytes: int
    seconds: float
    samples: tuple[float, ...]


@dataclass(frozen=True)
class KernelTime:
    """An all_reduce by a kernel that communicates itself, or by NCCL beside it.

    Attributes:
        nranks: the world's size.
        way: which kernel, and whether it is in a graph.
        nbytes: the size.
        seconds: of one, on GPUs by events on the stream; the median of samples, each the maximum
            over ranks.
        samples: seconds of one.
    """

    nranks: int
    way: str
    nbytes: int
    seconds: float
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Sequence:
    """A sequence of operations, called or replayed.

    Attributes:
        nranks: the world's size.
        way: how it was made.
        collective: the operation.
        length: operations in it.
        nbytes: the size of each.
        seconds: of one operation, on GPUs by events on the stream; the median of samples, each the
            maximum over ranks.
        samples: seconds of one operation.
    """

    nranks: int
    way: str
    collective: str
    length: int
    nbytes: int
    seconds: float
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Overlap:
    """A matrix product and a collective, apart and at the same time.

    Attributes:
        nranks: the world's size.
        way: who communicates, with how many CTAs.
        collective: which.
        nbytes: its size.
        matmul, communication, together: seconds, the medians of maxima over ranks.
    """

    nranks: int
    way: str
    collective: str
    nbytes: int
    matmul: float
    communication: float
    together: float

    @property
    def hidden(self) -> float:
        """The share of the shorter of the two that the longer one hid; 0 none, 1 all of it."""
        return (self.matmul + self.communication - self.together) / min(
            self.matmul, self.communication
        )


@dataclass(frozen=True)
class LabRow:
    """A row of the overlap lab: a matrix product beside a collective, and why not all is hidden.

    Attributes:
        nranks: the world's size.
        ctas: of the collective, "default" or a number.
        collective: which.
        nbytes: its size.
        compute, communication, both: seconds, the medians of maxima over ranks.
        hidden: the share of the communication that adds nothing.
        compute_slowdown, communication_slowdown: beside each other.
        verdict: the verdict, in words.
    """

    nranks: int
    ctas: str
    collective: str
    nbytes: int
    compute: float
    communication: float
    both: float
    hidden: float
    compute_slowdown: float
    communication_slowdown: float
    verdict: str
