"""Replay of recorded communication, on other machines and at other sizes.

:func:`replay` and the command ``pynccl replay`` accept recordings of PYNCCL_RECORD and traces of
nccl.trace(). See docs/replay.md.

``load`` reads the files and ``recorded`` combines them; ``check`` compares the ranks before
anything runs. ``compiler`` builds one program per process: communicators, streams, steps and
buffers, as plain picklable data. Each recorded process then becomes a rank of pynccl.testing
(``rank``), which fills the inputs, issues the steps and compares the outputs.

An input counts up modulo a small prime, from a phase that depends on communicator, rank and
operation (``values``). Each result is therefore exact in its dtype and unique to its operation, so
data of a wrong operation is detected.
"""

from pynccl.tools.replay.model import ReplayError
from pynccl.tools.replay.run import Result, Row, replay
from pynccl.tools.trace.chrome import load

__all__ = ["ReplayError", "Result", "Row", "load", "replay"]
