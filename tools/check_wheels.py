"""Builds a wheel for each of several interpreters, installs it into an empty environment of each,
and runs tests/package/installed.py there.

    python -m tools.check_wheels python3.10 python3.14 --with cupy-cuda13x

An interpreter is a command or a path; it needs the headers of Python and the module venv, but no
pip: the one of this interpreter is used. --with adds packages to a second environment with NumPy,
after the checks of the first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import release

__all__ = ["ROOT", "build_wheel", "check_installed", "main"]

ROOT = Path(__file__).parents[1]
_CONSTRAINTS = str(ROOT / "constraints.txt")
_TIMEOUT = 3600.0  # seconds of each command


def _run(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command quietly; where it fails, its output is printed."""
    done = subprocess.run(
        command, cwd="/", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed: {' '.join(command)}")


def _environment(python: str, folder: Path) -> str:
    """A new environment without pip; gives its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([python, "-m", "venv", "--without-pip", str(folder)])
    return str(folder / "bin" / "python")


def _pip(python: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    _run([*pip, *arguments])


def build_wheel(python: str, source: Path, folder: Path) -> Path:
    """Build a wheel for an interpreter, in isolation, with the versions of constraints.txt.

    Args:
        python: the command or path of the interpreter.
        source: a source tree or a source distribution.
        folder: for the environment of the build and, in ``dist``, for the wheel.

    Returns:
        The wheel.
    """
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    builder = _environment(python, folder / "build")
    _pip(
        builder,
        "wheel",
        "--no-deps",
        "--build-constraint",
        _CONSTRAINTS,
        "--wheel-dir",
        str(dist),
        str(source),
    )
    (wheel,) = dist.glob("*.whl")
    return wheel


def check_installed(python: str, wheel: Path, folder: Path, others: Sequence[str] = ()) -> None:
    """Install a wheel with NumPy into an empty environment, as its users do, and check it there.

    Args:
        python: the command or path of the interpreter.
        wheel: the wheel.
        folder: for the environment.
        others: requirements that are installed as well.
    """
    installed = _environment(python, folder)
    _pip(installed, "install", str(wheel), "numpy", *others)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYNCCL_"))}
    smoke = [installed, str(ROOT / "tests" / "package" / "installed.py")]
    subprocess.run(smoke, cwd="/", env=env, check=True, timeout=_TIMEOUT)


def main() -> int:
    """Check them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters")
    parser.add_argument(
        "--source", type=Path, help="a source distribution; default: one of this tree"
    )
    parser.add_argument("--with", dest="others", nargs="*", default=[], metavar="REQUIREMENT")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "check-wheels")
    options = parser.parse_args()
    out = options.out.resolve()
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(int(time.time())))
    source = options.source or release.make_sdist(out / "dist", out / "tree")
    lines = []
    for python in options.pythons:
        code = (
            "import platform, sys; print(sys.implementation.cache_tag, platform.python_version())"
        )
        tag, version = subprocess.check_output([python, "-c", code], text=True).split()
        folder = out / tag
        start = time.monotonic()
        wheel = build_wheel(python, source.resolve(), folder)
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {size:.2f} MB, built in {time.monotonic() - start:.0f} s", flush=True)
        check_installed(python, wheel, folder / "plain")
        if options.others:
            check_installed(python, wheel, folder / "others", options.others)
        lines.append(f"Python {version}: {wheel.name} passed {' '.join(options.others)}")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
