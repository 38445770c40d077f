"""Fetches the small wheels that a machine with torch, but without a network, lacks.

    python -m tools.wheels --python 3.12 --out build/wheels

It fetches the dependency group "offline" and its dependencies for the given version of Python. It
leaves out the packages that such a machine already has: NumPy and typing_extensions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_THERE = ("numpy", "typing_extensions")
_GLIBC = (39, 34, 31, 28, 27, 24, 17)  # pip takes a platform's name exactly
_LIMIT = 50 << 20  # bytes in all


def main() -> int:
    """Fetch them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--python", default="3.12", help="version, default: %(default)s")
    parser.add_argument("--out", type=Path, default=_ROOT / "build/wheels", help="folder")
    options = parser.parse_args()
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", options.python),
        *(f"--platform={name}" for name in platforms),
        *("--constraint", "constraints.txt", "--group", "offline", "--dest", str(options.out)),
    ]
    if subprocess.run(command, cwd=_ROOT, check=False).returncode:
        return 1
    for name in _THERE:
        for wheel in options.out.glob(f"{name}-*.whl"):
            wheel.unlink()
    wheels = sorted(options.out.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MB, in {options.out}")
    return 0 if size <= _LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
