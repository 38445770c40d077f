"""A copy of the working tree, built with other options.

The copy contains the files that git tracks or would add. pynccl is built in place, so all tests run
there as in a checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "build", "configure", "environment", "synchronise"]

ROOT = Path(__file__).resolve().parents[1]
_BUILD_S = 3600


def synchronise(tree: Path) -> None:
    """Make a folder a copy of the working tree. Unchanged files keep their timestamps."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    listed = tree / ".files"
    known = set(listed.read_text().split("\n")) if listed.exists() else set()
    current = {name for name in names if name and (ROOT / name).is_file()}
    for name in known - current:
        if name:
            (tree / name).unlink(missing_ok=True)
    for name in current:
        source, target = ROOT / name, tree / name
        content = source.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        target.chmod(source.stat().st_mode)
    listed.write_text("\n".join(sorted(current)))


def environment(**variables: str) -> dict[str, str]:
    """The environment for commands. cmake and ninja may be installed next to this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **variables}


def configure(tree: Path, folder: Path, options: Sequence[str]) -> None:
    """Configure the build of a copy."""
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    command = ["cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *options]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={pybind11}"]
    _run(command, environment())


def build(tree: Path, folder: Path, target: str = "all") -> bool:
    """Build a target of a copy and install it in place. Return whether it compiles."""
    env = environment()
    jobs = str(os.cpu_count() or 1)
    done = subprocess.run(
        ["cmake", "--build", str(folder), "--parallel", jobs, "--target", target],
        check=False, env=env, capture_output=True, text=True, timeout=_BUILD_S,
    )  # fmt: skip
    if done.returncode != 0:
        (folder / "errors.log").write_text(done.stdout + done.stderr)
        return False
    _run(["cmake", "--install", str(folder), "--prefix", str(tree)], env)
    return True


def _run(command: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, check=False, env=env, capture_output=True, text=True, timeout=_BUILD_S
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\n{' '.join(command)} failed")
