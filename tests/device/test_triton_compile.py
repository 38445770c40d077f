"""Proves that Triton kernels that communicate compile for real GPUs without one, to machine code
with accesses of system scope; also with NCCL's own device functions, but only those of the same
version.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import warm
from tests.support.commands import run_python

pytest.importorskip("triton")

from pynccl.device import triton as peers
from pynccl.device.triton import nccl
from pynccl.errors import LibraryNotFoundError

_HERE = Path(__file__).parent
_EXAMPLES = _HERE.parents[1] / "examples" / "device"

_COMPILE = """
import re, runpy, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CONSTANTS = {
    "BLOCK": 1024, "ROWS": 64, "INNER": 64, "COLUMNS": 128, "TILE_ROWS": 32, "TILE_COLUMNS": 64,
}
KINDS = {
    "pointers": "*u64", "signals": "*i64", "gathered": "*i64", "calls": "*i64",
    "counter": "*i64", "rank": "i32", "nranks": "i32", "count": "i32", "window": "i64",
    "comm": "i64", "buffer": "i32",
}

def compile(file, name, architecture, library=None):
    kernel = runpy.run_path(file)[name]
    constants = {key: value for key, value in CONSTANTS.items() if key in kernel.arg_names}
    kinds = {
        key: "constexpr" if key in constants else KINDS.get(key, "*fp32")
        for key in kernel.arg_names
    }
    compiled = triton.compile(
        ASTSource(kernel, kinds, constants), target=GPUTarget("cuda", architecture, 32),
        options={"extern_libs": {"libnccl_device": library}} if library else {},
    )
    ptx = compiled.asm["ptx"]
    assert compiled.asm["cubin"][:4] == b"\\x7fELF"
    assert re.search(r"(red|atom)\\.global\\.sys\\.release\\.add\\.u64", ptx), ptx
    assert re.search(r"ld\\.(acquire|relaxed)\\.sys|atom\\.global\\.sys\\.acquire", ptx), ptx
    assert not re.search(r"\\.extern \\.func|\\bcall\\.", ptx), ptx

here, examples, *libraries = sys.argv[1:]
sys.path.insert(0, examples)
for architecture in (90, 100):
    compile(here + "/gpu_kernels.py", "every_function", architecture)
for name, kernel in (
    ("triton_all_reduce", "one_shot"),
    ("triton_all_gather_matmul", "all_gather_matmul"),
):
    compile(f"{examples}/{name}.py", kernel, 90)
for library in libraries:
    compile(here + "/gpu_kernels.py", "every_function_of_nccl", 100, library)
print("compiled", len(libraries))
"""


def _device_libraries() -> list[Path]:
    """The files libnccl_device.bc of this environment: installed, and kept by `make abi`."""
    chosen = os.environ.get("PYNCCL_NCCL_DEVICE_LIBRARY")
    folders = [*map(Path, sys.path), *Path(sys.prefix, "abi").glob("nvidia-nccl-*")]
    found = [folder / "nvidia/nccl/lib/libnccl_device.bc" for folder in folders]
    return [path for path in (*([Path(chosen)] if chosen else []), *found) if path.is_file()]


def test_kernels_compile(tmp_path: Path) -> None:
    """Our functions and the examples, and those of each available libnccl_device.bc, which NCCL
    includes from 2.30 on: `make abi` downloads three. A failure shows the failed compile() call.
    """
    variables = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    libraries = _device_libraries()
    arguments = ("-c", _COMPILE, str(_HERE), str(_EXAMPLES), *map(str, libraries))
    done = run_python(*arguments, timeout=300, popen=warm.Popen, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"compiled {len(libraries)}\n"


def test_defaults_are_not_plain_strings() -> None:
    """Triton 3.6, the one of torch 2.11, makes numbers constants, and refuses a str."""
    checked = 0
    for name in peers.__all__:
        function = getattr(getattr(peers, name), "fn", None)
        for parameter in inspect.signature(function).parameters.values() if function else ():
            if parameter.default is parameter.empty or "constexpr" not in str(parameter.annotation):
                continue
            assert not isinstance(parameter.default, str), (name, parameter)
            checked += 1
    assert checked


def _install(folder: Path, version: str, *, header: bool = True, shared: bool = False) -> Path:
    """The files of an NCCL that contain its version."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").mkdir()
    if header:
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
        lines = [f"#define NCCL_{name} {number}" for name, number in numbers]
        (folder / "include/nccl.h").write_text("\n".join(lines))
    if shared:
        text = b"\0" * 5000 + b"NCCL version " + version.encode() + b"+cuda13.3\0"
        (folder / "lib/libnccl.so.2").write_bytes(text)
    path = folder / "lib/libnccl_device.bc"
    path.write_bytes(b"BC\xc0\xde")
    return path


def _library(path: Path, version: int, memory: str = "device") -> Any:
    """The part of a loaded library that device_library() reads."""
    return SimpleNamespace(path=str(path.with_name("libnccl.so.2")), version=version, memory=memory)


@pytest.mark.parametrize("files", [{}, {"header": False, "shared": True}], ids=["h", "so"])
def test_device_library_is_that_of_the_loaded_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bool]
) -> None:
    monkeypatch.delenv("PYNCCL_NCCL_DEVICE_LIBRARY", raising=False)
    path = _install(tmp_path, "2.31.2", **files)
    library = _library(path, 23102)
    assert nccl.device_library(library) == path
    assert nccl.extern_libs(library) == {"libnccl_device": str(path)}


@pytest.mark.parametrize("files", [{}, {"header": False, "shared": True}], ids=["h", "so"])
def test_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bool]
) -> None:
    older = _install(tmp_path / "older", "2.30.7", **files)
    loaded = _library(_install(tmp_path / "newer", "2.31.2"), 23102)
    monkeypatch.setenv("PYNCCL_NCCL_DEVICE_LIBRARY", str(older))
    with pytest.raises(LibraryNotFoundError, match=r"is of NCCL 2\.30\.7, but .*NCCL 2\.31\.2"):
        nccl.device_library(loaded)


def test_libraries_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYNCCL_NCCL_DEVICE_LIBRARY", raising=False)
    path = _install(tmp_path / "a", "2.31.2", header=False)
    with pytest.raises(LibraryNotFoundError, match=r"without nccl\.h or libnccl\.so\.2"):
        nccl.device_library(_library(path, 23102))
    monkeypatch.setenv("PYNCCL_NCCL_DEVICE_LIBRARY", str(tmp_path / "none"))
    with pytest.raises(LibraryNotFoundError, match="none does not exist"):
        nccl.device_library(_library(path, 23102))
    with pytest.raises(ValueError, match="is for CPUs"):
        nccl.device_library(_library(path, 23102, "host"))


def test_device_functions_are_not_for_the_interpreter() -> None:
    with pytest.raises(NotImplementedError, match=r"ncclDevComm_Rank is device code"):
        nccl.rank(0)
