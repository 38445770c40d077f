"""Counts instructions with valgrind's callgrind, independently of the load of the machine.

    python -m benchmarks.callgrind pynccl

The measured process runs under valgrind, and starts counting after its imports and a warm-up. It
marks parts by calling ncclResetDebugInit of the no-op library, at which callgrind writes its counts
and resets them. Each statement runs n times, then 2n times; the difference is that of n iterations,
without the start of the loop.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import noop

__all__ = ["available", "count"]

_REPEATS = 200
_MARK = "ncclResetDebugInit"
_MAIN = "-01"  # the suffix of the main thread's dumps


def available() -> bool:
    """Whether valgrind is installed."""
    return shutil.which("valgrind") is not None and shutil.which("vgdb") is not None


def count(libraries: Sequence[str] = (), timeout: float = 600) -> dict[str, float]:
    """Instructions of the rows of benchmarks.calls_rows, in a process of its own.

    Args:
        libraries: the libraries whose rows to count; all if empty.
        timeout: the time limit in seconds.

    Returns:
        The instructions per call by the row's name, minus those of the empty loop.
    """
    with tempfile.TemporaryDirectory(prefix="pynccl-callgrind-") as folder:
        profile, names = Path(folder, "profile"), Path(folder, "names.json")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        command += [f"--dump-before={_MARK}", f"--callgrind-out-file={profile}"]
        command += ["--separate-threads=yes"]  # others, such as that of recordings, do not count
        command += [sys.executable, "-m", "benchmarks.callgrind", "--child", str(names), *libraries]
        result = subprocess.run(
            command,
            check=False,
            # Addresses of strings decide how dictionaries are searched.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if result.returncode != 0:
            raise RuntimeError(f"under valgrind: {result.stdout}{result.stderr}"[-4000:])
        totals = [_total(Path(f"{profile}.{part}{_MAIN}")) for part in _parts(profile)]
        rows: list[str] = json.loads(names.read_text())
    # Each row has three parts: before its first mark, n iterations, and 2n.
    once, twice = totals[1::3], totals[2::3]
    counts = [(b - a) / _REPEATS for a, b in zip(once, twice, strict=True)]
    loop = counts[0]
    return {row: number - loop for row, number in zip(rows[1:], counts[1:], strict=True)}


def _parts(profile: Path) -> list[int]:
    """Return the numbers of the main thread's dumps at the marks; the last dump has none."""
    files = profile.parent.glob(f"{profile.name}.*{_MAIN}")
    return sorted(int(path.suffix[1:].removesuffix(_MAIN)) for path in files)


def _total(path: Path) -> int:
    match = re.search(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{path} has no total")
    return int(match[1])


def _child(names: Path, libraries: Sequence[str]) -> None:
    """Run the rows under valgrind."""
    from benchmarks import calls_rows
    from pynccl import raw

    rows, _ = calls_rows.rows(libraries or calls_rows.LIBRARIES)
    mark = getattr(raw.load(noop.library()), _MARK)
    for row in rows:
        row.timer.timeit(20)
    # Not a blocking wait: valgrind handles the request only while it executes code.
    switch = subprocess.Popen(["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"], stdout=-3)
    while switch.poll() is None:
        pass
    if switch.returncode != 0:
        raise SystemExit("vgdb failed")
    for row in rows:
        with row.around():
            row.timer.timeit(_REPEATS)
            mark()
            row.timer.timeit(_REPEATS)
            mark()
            row.timer.timeit(2 * _REPEATS)
            mark()
    names.write_text(json.dumps([row.name for row in rows]))
    sys.stdout.flush()
    os._exit(0)  # what the libraries do at the end takes long under valgrind


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]), sys.argv[3:])
    else:
        for name, instructions in count(sys.argv[1:]).items():
            print(f"{name:<36}{instructions:>10.0f}")
