"""Replay of recorded communication, on other machines and at other sizes.

:func:`replay` and the command ``pynccl replay`` accept recordings of PYNCCL_RECORD and traces of
nccl.trace(). See docs/replay.md.

``load`` reads the files and ``recorded`` combines them; ``check`` compares the ranks before
anything runs. ``compiler`` builds one program per process: communicators, streams, steps and
buffers, as plain picklable data. Each recorded process then becomes a rank of pynccl.testing
(``rank``), which issues the steps and times them. The data in the buffers is not defined.
"""

from pynccl.tools.replay.recorded import ReplayError
from pynccl.tools.replay.run import Result, Row, replay
from pynccl.tools.trace.chrome import load

__all__ = ["ReplayError", "Result", "Row", "load", "replay"]
