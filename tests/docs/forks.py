"""Runs ``python ARGUMENTS`` as a fork of a process with torch, and exits with its status.

``forks.py SOCKET ARGUMENTS``: that process is a server of tests.support.warm, which listens there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    path, *arguments = sys.argv[1:]
    if "LD_PRELOAD" in os.environ or "PMI_FD" in os.environ:  # of mpiexec, open in this process
        os.execv(sys.executable, [sys.executable, *arguments])
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.support import warm

    warm.connect(path)
    process = warm.Popen([sys.executable, *arguments], env={**os.environ}, start_new_session=True)
    status = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the processes that it has started
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
