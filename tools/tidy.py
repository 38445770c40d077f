"""Runs clang-tidy with the checks of .clang-tidy on the C++ sources compiled by CMake.

    python -m tools.tidy                    # all of csrc that is built here
    python -m tools.tidy csrc/comm/*.cpp    # these files

The exit status is 1 if there are findings. The build is configured but not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import trees

__all__ = ["configure", "sources"]

_FOLDER = trees.ROOT / "build" / "tidy"
_ONE_S = 600


def configure(folder: Path) -> None:
    """Configure a build that compiles each file separately."""
    options = ("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_UNITY_BUILD=OFF")
    trees.configure(trees.ROOT, folder, options)


def sources(folder: Path) -> list[Path]:
    """The files of csrc that a configured build compiles."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    return sorted({Path(one["file"]) for one in commands if "/csrc/" in one["file"]})


def _tidy(path: Path) -> tuple[Path, str]:
    """Return clang-tidy's findings in a file, or an empty string."""
    command = [str(Path(sys.executable).parent / "clang-tidy"), "-p", str(_FOLDER), "--quiet"]
    # Compiler warnings are left to the build, which uses gcc.
    command += ["--extra-arg=-Wno-everything", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_ONE_S)
    return path, done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def main() -> int:
    """Check the files, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.tidy")
    parser.add_argument("files", nargs="*", type=Path, help="all by default")
    options = parser.parse_args()
    began = time.monotonic()
    configure(_FOLDER)
    files = [path.resolve() for path in options.files] or sources(_FOLDER)
    findings: dict[str, str] = {}  # findings in headers only once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, text in pool.map(_tidy, files):
            for part in re.split(r"^(?=/[^\n]*: (?:error|warning): )", text, flags=re.MULTILINE):
                if part.strip() and findings.setdefault(part.partition("\n")[0], part) is part:
                    print(f"{path.relative_to(trees.ROOT)}:\n{part}", flush=True)
    seconds = time.monotonic() - began
    print(f"clang-tidy: {len(files)} files, {len(findings)} findings, {seconds:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
