"""Compiles libraries that report an older NCCL version, to test which functions pynccl calls."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_COMMUNICATORS = """
typedef struct { char bytes[128]; } Id;
static int sizes[2];  /* the rank and the number of ranks */
int ncclCommInitRankConfig(void** comm, int nranks, Id id, int rank, void* config) {
  sizes[0] = rank;
  sizes[1] = nranks;
  *comm = sizes;
  return 0;
}
int ncclCommUserRank(void* comm, int* rank) { *rank = sizes[0]; return 0; }
int ncclCommCount(void* comm, int* count) { *count = sizes[1]; return 0; }
int ncclCommCuDevice(void* comm, int* device) { *device = 0; return 0; }
int ncclCommGetAsyncError(void* comm, int* error) { *error = 0; return 0; }
int ncclCommDestroy(void* comm) { return 0; }
int ncclCommAbort(void* comm) { return 0; }
int hostDeviceGetCount(int* count) { *count = 1; return 0; }
int hostDriverGetVersion(int* version) { *version = 13000; return 0; }
"""
_DRIVER = Path(__file__).parents[2] / "csrc" / "abi" / "driver_functions.inc"


def compile_nccl(
    folder: Path, version: int, source: str = "", *, with_communicators: bool = False
) -> str:
    """Compile source to a library whose ncclGetVersion returns version, and return its path.

    Args:
        folder: the folder of the library.
        version: an NCCL_VERSION_CODE.
        source: C code.
        with_communicators: add functions that create and end one communicator at a time, and no-op
            stream calls, so that the library works on CPUs.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C compiler to build an old NCCL")
    text = f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}\n{source}"
    if with_communicators:
        names = re.findall(r"^FUNCTION\(\w+, CUresult, (\w+)", _DRIVER.read_text(), re.MULTILINE)
        names.remove("DeviceGetCount")
        names.remove("DriverGetVersion")
        text += _COMMUNICATORS
        text += "".join(f"int host{name}() {{ return 0; }}\n" for name in names)
    file, library = folder / f"nccl-{version}.c", folder / f"libnccl-{version}.so"
    file.write_text(text)
    command = [compiler, "-shared", "-fPIC", "-x", "c", str(file), "-o", str(library)]
    subprocess.run(command, check=True, timeout=60)
    return str(library)
