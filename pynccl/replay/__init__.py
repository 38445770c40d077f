"""Issues recorded communication again, on other machines and at other sizes.

:func:`replay` and the command ``pynccl replay`` take recordings of PYNCCL_RECORD and traces of
nccl.trace(). See docs/replay.md.
"""

from pynccl.replay.errors import ReplayError
from pynccl.replay.load import load
from pynccl.replay.report import Row
from pynccl.replay.run import Result, replay

__all__ = ["ReplayError", "Result", "Row", "load", "replay"]
