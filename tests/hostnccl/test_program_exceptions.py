"""Proves that an exception thrown by a program's function on a stream is an error of the stream, in
a process in which hostnccl has not thrown before, and that the program's C++ runtime is unaffected.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("elftools")

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import pynccl
from pynccl import libraries
from pynccl.c10d import build
from tests.support.commands import python_output
from tools import noop

_HOST = Path(libraries.locate("host").path)
_LIBRARIES = {"provider": _HOST, "preload": _HOST.parent / "preload" / "libnccl.so.2"}

_FUNCTIONS = r"""
#include <exception>
#include <new>
#include <stdexcept>
struct Other {};
extern "C" {
void standard(void*) { throw std::runtime_error("the kernel's own text"); }
void memory(void*) { throw std::bad_alloc(); }
void other(void*) { throw Other(); }
int uncaught() { return std::uncaught_exceptions(); }
}
"""

# Runs on the calling thread, then on a stream; prints the result and what the runtime counts.
_BY_CTYPES = """
import ctypes, sys
functions, library = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
library.ncclGetLastError.restype = ctypes.c_char_p
for name in ("standard", "memory", "other", "standard"):
    function = ctypes.cast(functions[name], ctypes.c_void_p)
    result = library.hostLaunchHostFunc(None, function, None)
    print(name, result, library.ncclGetLastError(None).decode(), functions.uncaught(), sep="|")
"""
_ON_A_STREAM = """
import ctypes, sys
from pynccl import nccl
functions = ctypes.CDLL(sys.argv[1])
for name in ("standard", "memory", "other", "standard"):
    stream = nccl.Stream("host")
    stream.launch_native(ctypes.cast(functions[name], ctypes.c_void_p).value)
    try:
        stream.synchronize()
        print(name, "nothing was raised")
    except RuntimeError as error:
        print(name, error)
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    source, target = folder / "functions.cpp", folder / "functions.so"
    source.write_text(_FUNCTIONS)
    command = [os.environ.get("CXX", "c++"), "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return target


def _run(code: str, *arguments: Path) -> list[str]:
    return python_output(code, *map(str, arguments)).splitlines()


def test_on_a_stream(functions: Path) -> None:
    standard, memory, other, again = _run(_ON_A_STREAM, functions)
    assert "the kernel's own text" in standard
    assert "the kernel's own text" in again
    assert "out of memory" in memory
    assert "an unknown exception" in other


@pytest.mark.parametrize("library", _LIBRARIES.values(), ids=_LIBRARIES)
def test_on_the_calling_thread(functions: Path, library: Path) -> None:
    unknown, out_of_memory = 999, 2  # CUDA_ERROR_*
    assert _run(_BY_CTYPES, functions, library) == [
        f"standard|{unknown}|the kernel's own text|0",
        f"memory|{out_of_memory}|out of memory|0",
        f"other|{unknown}|an unknown exception|0",
        f"standard|{unknown}|the kernel's own text|0",
    ]


def _has_own_unwinder(path: Path) -> bool:
    """Whether exceptions that pass the library are unwound by a copy other than libgcc_s.so.1.

    A frame with a table of handlers is passed by exceptions of other libraries as well. Its
    personality routine must call the unwinder that runs.
    """
    with path.open("rb") as opened:
        file = ELFFile(opened)
        if file.get_section_by_name(".gcc_except_table") is None:
            return False
        dynamic = file.get_section_by_name(".dynamic")
        symbols = file.get_section_by_name(".dynsym")
        assert isinstance(dynamic, DynamicSection)
        assert isinstance(symbols, SymbolTableSection)
        needed = {getattr(tag, "needed", None) for tag in dynamic.iter_tags()}
        imported = {s.name for s in symbols.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}
    return not ("libgcc_s.so.1" in needed and "_Unwind_Resume" in imported)


def _shared_objects() -> list[Path]:
    """The shipped libraries, those built from shipped sources, and those of the tests."""
    package = Path(pynccl.__file__).parent
    found = [*package.glob("*.so"), *package.glob("lib/**/*.so*"), noop.library()]
    if build.path().exists():
        found.append(build.path())
    found += (package.parent / "build").glob("double*/**/*.so*")
    return found


def test_no_library_has_an_unwinder_of_its_own() -> None:
    """Only an exception of its own sets that up, and one of the program ends in abort()."""
    libraries_found = _shared_objects()
    assert len(libraries_found) >= 4
    assert not [path for path in libraries_found if _has_own_unwinder(path)]


def test_an_unwinder_of_its_own_is_noticed(tmp_path: Path) -> None:
    source, target = tmp_path / "own.cpp", tmp_path / "own.so"
    source.write_text("struct A { ~A(); }; void f(); void g() { A a; f(); }")
    compiler = os.environ.get("CXX", "c++")
    for options, own in ([], False), (["-static-libgcc"], True):
        command = [compiler, "-shared", "-fPIC", *options, str(source), "-o", str(target)]
        subprocess.run(command, check=True, timeout=120)
        assert _has_own_unwinder(target) == own
