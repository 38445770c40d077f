"""Proves that an installed wheel of rawnccl works without a source tree: its metadata and files,
NumPy alone, ranks as processes, the command, and NCCL clients by LD_PRELOAD; with torch and CuPy if
they are installed.

A program for the interpreter of the environment that it checks, without pytest:
python tests/package/installed.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pynccl
from pynccl import nccl
from pynccl.libraries import hostnccl_preload
from pynccl.testing import Rank, launch

_HERE = Path(__file__).resolve().parent
_CLIENTS = _HERE.parent / "clients"
_FILES = (
    "py.typed",
    "_C.pyi",
    "include/pynccl/pynccl.h",
    "include/pynccl/device.h",
    "include/pynccl/c10d/module.cpp",
    "lib/libhostnccl.so",
    "lib/libpynccl_plugin.so",
    "lib/preload/libnccl.so.2",
)
_TIMEOUT = 120.0  # seconds of each command


def check(holds: bool, what: object) -> None:
    """Fail with a text, because assert may be disabled."""
    if not holds:
        raise SystemExit(f"FAILED: {what}")


def run(command: list[str], **variables: str) -> str:
    """The output of a command."""
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    check(done.returncode == 0, f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def metadata() -> None:
    """Check the distribution, its version and files, and that this is not the source tree's
    package.
    """
    package = Path(pynccl.__file__).resolve().parent
    check(package != _HERE.parents[1] / "pynccl", f"{package} is the source tree's")
    check(
        package.parent
        in {Path(sysconfig.get_path(name)).resolve() for name in ("platlib", "purelib")},
        f"{package} is not installed in {sys.prefix}",
    )
    installed = importlib.metadata.version("rawnccl")
    check(installed == pynccl.__version__, f"{installed} is not {pynccl.__version__}")
    for name in _FILES:
        check((package / name).is_file(), f"{name} is missing")
    names = {file.name for file in importlib.metadata.files("rawnccl") or []}
    for name in ("LICENSE", "LICENSE-THIRD-PARTY"):
        check(name in names, f"{name} is missing")


def numpy_alone() -> None:
    """Two ranks in this process, and no torch."""
    comms = nccl.Communicator.init_all(2, provider="host")
    data = [np.full(1000, rank + 1.0, np.float32) for rank in range(2)]
    with nccl.group():
        for comm, array in zip(comms, data, strict=True):
            comm.all_reduce(array)
    check(all((array == 3).all() for array in data), data)
    for comm in comms:
        comm.close()
    check("torch" not in sys.modules, "torch is imported")


def _sum(rank: Rank) -> float:
    array = np.full(100_000, rank.rank + 1.0)
    rank.comm.all_reduce(array)
    return float(array[-1])


def processes() -> None:
    """Ranks as processes."""
    sums = launch(3, _sum, provider="host", timeout=_TIMEOUT)
    check(sums == [6.0] * 3, sums)


def command() -> None:
    """The command that pip installs."""
    printed = run([str(Path(sys.prefix) / "bin" / "pynccl"), "info"])
    check(pynccl.__version__ in printed, printed)
    check("problem:" not in printed, printed)


def _client(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(_CLIENTS / name), str(rank), "2", f"{folder}/id"],
                env={**os.environ, "LD_PRELOAD": str(hostnccl_preload())},
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        try:
            printed = [rank.communicate(timeout=_TIMEOUT)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    check(all(rank.returncode == 0 for rank in ranks), f"{name}: {printed}")


def preload() -> None:
    """A ctypes client of libnccl.so.2, with ours preloaded."""
    _client("by_ctypes.py")


def cupy_preload() -> None:
    """CuPy's bindings, likewise."""
    _client("by_cupy.py")


def torch_functions() -> None:
    """torch.distributed's functions over CPUs, in a world of one."""
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import torch, pynccl as dist\n"
            f"dist.init_process_group('host', init_method='file://{folder}/store',"
            " rank=0, world_size=1)\n"
            "tensor = torch.ones(4)\n"
            "dist.all_reduce(tensor)\n"
            "assert tensor.tolist() == [1] * 4\n"
            "dist.destroy_process_group()\n"
            "print(torch.__version__)"
        )
        print("  torch", run([sys.executable, "-c", code]).strip())


def main() -> int:
    """Run all checks; the exit status."""
    checks: list[Callable[[], None]] = [metadata, numpy_alone, processes, command, preload]
    if importlib.util.find_spec("cupy"):
        checks.append(cupy_preload)
    if importlib.util.find_spec("torch"):
        checks.append(torch_functions)
    for function in checks:
        function()
        print(f"  {function.__name__}: passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
