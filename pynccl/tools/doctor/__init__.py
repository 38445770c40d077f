"""``pynccl doctor``: says in words what keeps pynccl from working on this machine.

:func:`diagnose` looks at the packages, the libraries of each provider, the machine and the
environment, and runs two ranks over each provider that can be used. What could crash or hang, which
is all that loads a library, runs in processes with a time limit, which are ended by their ids.
"""

from pynccl.tools.doctor.diagnosis import Diagnosis, diagnose
from pynccl.tools.doctor.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
