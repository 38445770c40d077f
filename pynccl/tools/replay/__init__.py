"""Replay of recorded communication, on other machines and at other sizes.

:func:`replay` and the command ``pynccl replay`` accept recordings of PYNCCL_RECORD and traces of
nccl.trace(). See docs/replay.md.

``load`` reads the files and ``recorded`` combines them; ``check`` compares the ranks before
anything runs. ``compiler`` builds one program per process: communicators, streams, steps and
buffers, as plain picklable data. Each recorded process then becomes a rank of pynccl.testing
(``rank``), which fills the inputs, issues the steps and compares the outputs.

An input (``program.Source``) counts up modulo a prime, from a phase that depends on communicator,
rank and operation. The prime is small enough for a reduction over all ranks to be exact in the
dtype. Results are thus exact and differ between operations, so wrong data is detected.
"""

from pynccl.tools.replay.recorded import ReplayError
from pynccl.tools.replay.run import Result, Row, replay
from pynccl.tools.trace.chrome import load

__all__ = ["ReplayError", "Result", "Row", "load", "replay"]
