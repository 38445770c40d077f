"""The facts about the machine for reports, and the removal of names that reports must not contain.

    python -m benchmarks.machine --device cuda

prints the facts as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Machine", "describe", "inspect", "rows", "scrub", "slug"]

ROOT = Path(__file__).parents[1]

_PACKAGES = ("torch", "numpy", "cupy-cuda13x", "cupy-cuda12x", "triton", "nccl4py")
_TIMEOUT = 20.0  # seconds for a command


@dataclass(frozen=True)
class Machine:
    """The hardware and the versions of a run."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]
    system: str
    versions: dict[str, str]


def inspect(provider: str | None) -> Machine:
    """Return the facts about this machine.

    Args:
        provider: ``"cuda"`` or ``"host"``: whose library and devices to name; None names none.

    Raises:
        LibraryNotFoundError, DriverError: the provider cannot be used here.
    """
    import pynccl
    from pynccl import libraries, nccl

    versions = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if provider == "cuda":
        import torch

        # First torch, which may contain the NCCL that is used.
        versions["CUDA of torch"] = str(torch.version.cuda)
        torch.cuda.is_available()
    versions["pynccl"] = pynccl.__version__ + _commit()
    if provider:
        name = "NCCL" if provider == "cuda" else "hostnccl"
        versions[name] = ".".join(map(str, nccl.get_version(provider)))
    gpus: tuple[str, ...] = ()
    if provider == "cuda":
        library = libraries.load(provider)
        driver = library.driver_version()
        versions["CUDA of the driver"] = f"{driver // 1000}.{driver % 1000 // 10}"
        versions["driver"] = _driver()
        gpus = tuple(library.device_names())
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        gpus=gpus,
        system=_system(),
        versions=versions,
    )


def rows(machine: Machine) -> list[tuple[str, str]]:
    """Return the facts as rows (what, which) of a table."""
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    return [
        ("GPU", gpus or "none: CPUs, over hostnccl"),
        ("CPU", f"{machine.cpu}, {machine.cores} cores"),
        ("system", machine.system),
        *machine.versions.items(),
    ]


def describe(machine: Machine) -> str:
    """Return the facts in two lines."""
    gpus = ""
    if machine.gpus:
        gpus = f", {len(machine.gpus)} GPU ({', '.join(sorted(set(machine.gpus)))})"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{machine.cpu}, {machine.cores} cores{gpus}\n{versions}"


def slug(machine: Machine) -> str:
    """Return a part of file names: ``"h200"`` for an NVIDIA H200, ``"cpu"`` without a GPU."""
    if not machine.gpus:
        return "cpu"
    name = machine.gpus[0].removeprefix("NVIDIA ").lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def scrub(text: str) -> str:
    """Remove folders and the name of this machine from a text."""
    text = re.sub(r"(?<![\w.:/])/(?:[\w.+@-]+/)+", "", text.replace(f"{ROOT}/", ""))
    host = socket.gethostname()
    return re.sub(rf"\b{re.escape(host)}\b", "HOST", text) if len(host) > 3 else text


def _ask(*command: str) -> str:
    """Return the output of a command, '' if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=True, cwd=ROOT
        )
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout.strip()


def _driver() -> str:
    asked = _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return asked.splitlines()[0].strip() if asked else "unknown"


def _commit() -> str:
    """Return the commit of the sources, if known."""
    commit = _ask("git", "describe", "--always", "--dirty", "--exclude=*")
    return f" ({commit})" if commit else ""


def _system() -> str:
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{platform.system()} {kernel}, {' '.join(platform.libc_ver())}".rstrip(", ")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    """Print the facts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options = parser.parse_args()
    machine = inspect("cuda" if options.device == "cuda" else "host")
    print(json.dumps(dataclasses.asdict(machine)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
