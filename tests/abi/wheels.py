"""Fetches the wheels with real headers and libraries, and keeps the files that the checks need."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The headers that nccl.h includes, by wheel: CUDA's own with cuda.h, crt/, and nv/target.
CUDA = (
    ("nvidia-cuda-runtime", "13.5.37"),
    ("nvidia-cuda-crt", "13.5.37"),
    ("nvidia-cuda-cccl", "13.3.5.0.6"),
)
NCCL = "nvidia-nccl-cu13"
NCCL_VERSIONS = ("2.32.3", "2.31.2", "2.30.7", "2.29.7", "2.28.9", "2.27.7")

NEEDED = re.compile(
    r"nvidia/nccl/(include/.*\.(h|hpp|cuh)|lib/(libnccl\.so\.2|libnccl_device\.bc))"
    r"|nvidia/cu\d+/include/(\w+\.(h|hpp)|crt/.*|nv/.*|cccl/(cuda|nv)/.*)"
)


def fetch(cache: Path, package: str, version: str) -> Path:
    """The unpacked wheel, from the cache or by pip.

    Args:
        cache: The folder with one folder for each wheel.
        package: The name of the distribution.
        version: Its exact version.

    Returns:
        The folder that has the wheel's own paths under it.
    """
    target = cache / f"{package}-{version}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary=:all:", "--dest", scratch, f"{package}=={version}"]
        subprocess.run(pip, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        print(f"      fetched {wheel.name}: {wheel.stat().st_size / 1e6:.0f} MB", flush=True)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if NEEDED.fullmatch(member.filename):
                    archive.extract(member, unpacked)
        # A run that is interrupted leaves no half-filled folder behind.
        shutil.move(unpacked, target)
    return target


def only(folder: Path, pattern: str) -> Path:
    """The one file or folder under a folder that a pattern names."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder.name} has {len(found)} of {pattern}")
    return found[0]
