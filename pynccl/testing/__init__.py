"""Runs a function on several ranks of this machine, for tests and benchmarks.

:func:`launch` starts a world, waits for it and returns the result of every rank::

    from pynccl.testing import Rank, launch

    def add_up(rank: Rank, start: float) -> float:
        x = numpy.array([start + rank.rank])
        rank.comm.all_reduce(x)
        return float(x[0])

    def test_sum():
        assert launch(4, add_up, (1.0,)) == [10.0] * 4

Ranks are new Python processes, or threads of one new process. A deadline ends ranks that hang. The
error of a failed launch has the traceback of every rank that failed. No process outlives the
launch, also where the calling process is killed.

:class:`Launcher` keeps the processes for the next launch, which saves the start of Python and the
imports: with it a session of many small tests is several times faster.

Only the standard library is needed; ranks import what their function imports.
"""

from pynccl.testing._launcher import Launcher, launch
from pynccl.testing._rank import Outcome, Rank
from pynccl.testing._run import LaunchError, Run

__all__ = ["LaunchError", "Launcher", "Outcome", "Rank", "Run", "launch"]
