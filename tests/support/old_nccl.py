"""Compiles libraries that say they are an older NCCL, to see what pynccl asks of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_DRIVER = Path(__file__).parents[2] / "csrc" / "abi" / "driver_functions.inc"


def compile_nccl(folder: Path, version: int, source: str, *, with_streams: bool = False) -> str:
    """The path of a library with an ncclGetVersion that gives version, and what source has.

    Args:
        folder: where to put it.
        version: as NCCL_VERSION_CODE.
        source: C.
        with_streams: stream calls of its own, which do nothing: its communicators work on CPUs.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C compiler to make an old NCCL with")
    text = f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}\n{source}"
    if with_streams:
        names = re.findall(r"^FUNCTION\(\w+, CUresult, (\w+)", _DRIVER.read_text(), re.MULTILINE)
        names.remove("DeviceGetCount")
        text += "int hostDeviceGetCount(int* count) { *count = 1; return 0; }\n"
        text += "".join(f"int host{name}() {{ return 0; }}\n" for name in names)
    file, library = folder / f"nccl-{version}.c", folder / f"libnccl-{version}.so"
    file.write_text(text)
    command = [compiler, "-shared", "-fPIC", "-x", "c", str(file), "-o", str(library)]
    subprocess.run(command, check=True, timeout=60)
    return str(library)
