"""The overlap lab: how much of a communication hides behind compute, and why the rest does not.

    from pynccl import nccl
    from pynccl.tools import lab

    row = lab.overlap(compute, communicate, comm=comm)
    print(f"{row.hidden:.0%} hidden, {row.exposed * 1e3:.2f} ms exposed; {row.verdict}")

``compute`` and ``communicate`` are called with a stream and enqueue their work on it. ``pynccl lab
overlap`` sweeps sizes, settings and loads; ``pynccl lab sweep`` compares the algorithms of a
collective. See docs/lab.md.

Times are measured by events on the streams, except on the default stream of a CPU. Ranks agree on
the number of repetitions and on the next probe by all-reducing maxima (``steps``), so that they
all measure the same step. ``verdict.classify`` takes only numbers (``Evidence``) and needs no
communicator. A gate is a host function that blocks a stream for a known time and occupies nothing
else: an operation that starts before the gate of another stream opens does not wait for that
stream.
"""

from pynccl.tools.lab.loads import Gemm, Load, MemoryBound, Sleep, Spin, fit, make_load
from pynccl.tools.lab.measure import overlap
from pynccl.tools.lab.operations import Communication
from pynccl.tools.lab.row import Row, Span, Timing
from pynccl.tools.lab.settings import Setting, combinations, sweep_overlaps
from pynccl.tools.lab.tensors import enqueue, zeros
from pynccl.tools.lab.verdict import Evidence, Verdict, classify
from pynccl.tools.lab.world import script

__all__ = [
    "Communication",
    "Evidence",
    "Gemm",
    "Load",
    "MemoryBound",
    "Row",
    "Setting",
    "Sleep",
    "Span",
    "Spin",
    "Timing",
    "Verdict",
    "classify",
    "combinations",
    "enqueue",
    "fit",
    "make_load",
    "overlap",
    "script",
    "sweep_overlaps",
    "zeros",
]
