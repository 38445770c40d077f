"""Runs a function on several ranks on this machine, for tests and benchmarks.

:func:`launch` starts the ranks, waits for them and returns their results::

    from pynccl.testing import Rank, launch

    def add_up(rank: Rank, start: float) -> float:
        x = numpy.array([start + rank.rank])
        rank.comm.all_reduce(x)
        return float(x[0])

    def test_sum():
        assert launch(4, add_up, (1.0,)) == [10.0] * 4

Ranks are new Python processes, or threads of one new process. Ranks that hang are killed at a
deadline. The error of a failed launch contains the traceback of every failed rank. No process
outlives the launch, even if the calling process is killed.

:class:`Launcher` reuses the processes for the next launch, which saves starting Python and
importing modules: a session of many small tests runs several times faster.

Requires only the standard library; ranks import what their function imports.
"""

from pynccl.testing._launcher import Launcher, LaunchError, Run, launch
from pynccl.testing._rank import Outcome, Rank

__all__ = ["LaunchError", "Launcher", "Outcome", "Rank", "Run", "launch"]
