"""Downloads wheels with real headers and libraries, and stores the files that the checks need."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The wheels with the headers that nccl.h includes: cuda.h, crt/, and nv/target.
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
    """Return the folder of an unpacked wheel, downloaded by pip unless it is in the cache.

    Args:
        cache: The folder that contains a folder per wheel.
        package: The name of the distribution.
        version: Its exact version.

    Returns:
        The folder that contains the paths of the wheel.
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
        print(f"      downloaded {wheel.name}: {wheel.stat().st_size / 1e6:.0f} MB", flush=True)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if NEEDED.fullmatch(member.filename):
                    archive.extract(member, unpacked)
        # Moved at the end, so that an interrupted run leaves no incomplete folder.
        shutil.move(unpacked, target)
    return target


def only(folder: Path, pattern: str) -> Path:
    """Return the only file or folder below a folder that matches a pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder.name}: {len(found)} paths match {pattern}, expected 1")
    return found[0]
