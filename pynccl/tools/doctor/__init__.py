"""``pynccl doctor``: diagnose this installation.

:func:`diagnose` checks the packages, the libraries of each provider, the machine and the
environment, and runs two ranks over each usable provider. Anything that loads a library may crash
or hang, so it runs in a child process with a time limit.
"""

from pynccl.tools.doctor.diagnosis import Diagnosis, diagnose
from pynccl.tools.doctor.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
